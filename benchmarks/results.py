"""``benchmarks/RESULTS.md``: one section per benchmark between markers, replaced by each run."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """# Results

Written by the benchmarks themselves (`make bench`, or one module at a time); each section says how to run it again.
"""


def write_section(
    name: str,
    title: str,
    body: str,
    *,
    command: str,
    packages: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
    path: Path = RESULTS,
) -> None:
    """Replace section ``name`` (or append it): title, machine, versions, command, then ``body`` (Markdown), and print
    the body.

    ``packages`` are distributions whose versions matter; ``facts`` more of the kind (a server's version, a data set).
    """
    about = {"machine": machine(), "command": f"`{command}`", **(facts or {})}
    about["versions"] = ", ".join(
        [f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]
    )
    lines = "\n".join(f"- {name}: {value}" for name, value in about.items())
    section = f"<!-- {name}: begin -->\n## {title}\n\n{body.strip()}\n\n{lines}\n<!-- {name}: end -->\n"
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD
    path.write_text(_replaced(text, name, section), encoding="utf-8")
    print(body)


def _replaced(text: str, name: str, section: str) -> str:
    marked = re.compile(rf"<!-- {re.escape(name)}: begin -->.*?<!-- {re.escape(name)}: end -->\n", re.DOTALL)
    if marked.search(text):
        return marked.sub(lambda _: section, text)
    return f"{text.rstrip()}\n\n{section}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    rule = ["---", *(["---:"] * (len(head) - 1))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, rule, *rows])


def machine() -> str:
    """Processor, usable cores and memory."""
    model = "unknown processor"
    memory = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        model = names[0] if names else platform.machine()
        total = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
        memory = f", {int(total.group(1)) / (1 << 20):.0f} GiB" if total else ""
    return f"{model}, {len(os.sched_getaffinity(0))} cores{memory}, {platform.system()} {platform.release()}"
