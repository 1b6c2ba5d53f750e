"""A runner says what it does to who reads its output, people or programs."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.tailrace.conftest import Project

VIEW = """/* projection
key = "id"
sink = { kind = "postgres", sink = "mart", table = "names" }
inputs.customers = "shop.public.customers"
*/
SELECT id, name FROM customers
"""


def test_a_program_is_told_too_that_a_definition_was_edited(shop: Project) -> None:
    folder = shop.folder / "views"
    folder.mkdir()
    (folder / "names.sql").write_text(VIEW)
    config = shop.folder / "tailrace.toml"
    shop.configure(f'{config.read_text()}\n[projections]\nsql = ["views"]\n')
    shop.ok("init", "--no-ddl")
    runner = shop.start("run", "--json")
    assert runner.stdout is not None
    first = json.loads(runner.stdout.readline())
    assert (first["projection"], first["status"]) == ("names", "waiting"), "it has read its definitions"
    (folder / "names.sql").write_text(f"{VIEW}WHERE id > 3")
    assert runner.stderr is not None
    with killed_after(runner, 60.0):
        texts = (json.loads(line)["text"] for line in runner.stderr)
        said = next((text for text in texts if "edited" in text), "nothing")
    assert "names.sql was edited; names goes on as it was read at the start" in said


@contextmanager
def killed_after(process: subprocess.Popen[str], seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
