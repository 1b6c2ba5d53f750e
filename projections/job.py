"""An entry point for schedulers and ``spark-submit``: one importable ``main`` that talks by exit codes and JSON lines.

    spark-submit --master local[4] -m projections.job refresh --settings tailrace-prod.toml
    python -m projections.job rebuild customer_totals --settings tailrace-prod.toml

The settings file is one environment of ``tailrace.toml``, without overlays; ``${VAR}`` comes from the environment. Safe
to run twice: the second run finds nothing to do, or is fenced. Exit codes: 0 done, 2 usage, 3 nothing to do, 4
difference found, 5 fenced, 6 resumable (run it again), 7 an operator must act, 1 a bug of ours. Values of rows are
hidden unless ``TAILRACE_SHOW_VALUES=1``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from eventstore import disclosure
from eventstore.errors import TailraceError, UsageError
from eventstore.log import Store
from eventstore.settings import Settings
from projections.context import ProjectionContext
from projections.definition import load_configured
from projections.lifecycle import rebuild, refresh, verify

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BUG = 1
NOTHING_TO_DO = 3
DIFFERENT = 4
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. Prints one JSON document per projection to standard output, errors to standard error."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except TailraceError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (the interpreter's own traceback would quote values)
        print(disclosure.traceback_of(error), file=sys.stderr)
        return BUG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="projections.job", description="Projections, for schedulers.")
    parser.add_argument("verb", choices=["refresh", "rebuild", "verify"])
    parser.add_argument("names", nargs="*", help="projections; all unless given")
    parser.add_argument("--settings", type=Path, required=True, help="a TOML file of resolved settings")
    parser.add_argument("--as-of", help="rebuild: epoch, LSN or ISO time; such a generation is not promoted")
    parser.add_argument("--sample", type=int, help="verify: compare about so many random keys")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments.settings)
    root = arguments.settings.resolve().parent
    projections = load_configured(settings.projections, root)
    with Store.open(settings.store, root=root) as store:
        ctx = ProjectionContext(store, settings, projections)
        names = arguments.names or list(projections)
        match arguments.verb:
            case "refresh":
                return _refresh(ctx, names)
            case "rebuild":
                for name in names:
                    _print(rebuild(ctx, name, as_of=arguments.as_of))
                return 0
            case _:
                compared = [verify(ctx, name, sample=arguments.sample) for name in names]
                for comparison in compared:
                    _print(comparison)
                return 0 if all(comparison.equal for comparison in compared) else DIFFERENT


def _refresh(ctx: ProjectionContext, names: Sequence[str]) -> int:
    outcomes = refresh(ctx, names)
    for outcome in outcomes:
        _print(outcome)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if errors:
        return max(error.exit_code for error in errors)
    return 0 if any(outcome.changed for outcome in outcomes) else NOTHING_TO_DO


def read_settings(path: Path) -> Settings:
    """Raises UsageError naming what is wrong, without the values, which may be secrets."""
    try:
        text = path.read_text(encoding="utf-8")
        return Settings.model_validate(tomllib.loads(_VARIABLE.sub(_value_of, text)))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="pass --settings FILE.toml") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors()
        )
        raise UsageError(f"{path}: {problems}", hint="correct these keys") from None


def _value_of(match: re.Match[str]) -> str:
    value = os.environ.get(match[1])
    if value is None:
        raise UsageError(f"environment variable {match[1]} is not set", hint="the settings file refers to it")
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _print(result: DataclassInstance) -> None:
    document = {name: value for name, value in asdict(result).items() if name != "error"}
    for sample in document.get("samples", ()):
        sample |= {
            name: disclosure.said(sample[name] or "") or None for name in ("key", "expected", "actual")
        }
    print(json.dumps(document, default=str))


if __name__ == "__main__":
    sys.exit(main())
