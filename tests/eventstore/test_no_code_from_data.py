"""What is read back never runs: what turns bytes into code or objects is used in the files named here alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support import REPOSITORY

RUNS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml", "_pickle"}
CALLS = {"eval", "exec", "__import__"}
# Spark's transport between its processes, and a test's to the child that it kills. Neither is kept.
TRANSPORT = {
    "projections/compute/frames.py",
    "projections/compute/state_runs.py",
    "tailrace/testing/sink_crashes.py",
}
# Each imports what the command line, the configuration, a definition's header, the driver of a task or our own source
# names.
IMPORTS = {
    "cdc/postgres/inbox.py",
    "eventstore/publishing/bridges/own.py",
    "projections/definition/load.py",
    "projections/definition/sql/own_sink.py",
    "projections/events/typed_events.py",
    "projections/sinks/record.py",
    "tailrace/__init__.py",
    "tailrace/cli/events.py",
    "tailrace/testing/__init__.py",
}


def found_in(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.partition(".")[0])
                found |= {"import_module" for name in node.names if name.name == "import_module"}
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                found.add(name)
            case ast.Attribute(attr="import_module"):
                found.add("import_module")
            case ast.keyword(arg="allow_pickle"):
                found.add("pickle")
            case _:
                pass
    return found & {*RUNS, *CALLS, "import_module"}


def test_nothing_that_is_read_back_can_run() -> None:
    files = [
        file
        for room in ("cdc", "eventstore", "projections", "migrations", "tailrace")
        for file in sorted((REPOSITORY / room).rglob("*.py"))
    ]
    found = {
        file.relative_to(REPOSITORY).as_posix(): found_in(file) for file in files if not file.is_symlink()
    }
    assert {path for path, words in found.items() if words - {"import_module"}} == TRANSPORT
    assert {path for path, words in found.items() if "import_module" in words} == IMPORTS
