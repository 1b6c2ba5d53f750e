"""Which modules the threads of a command import: two threads that import modules which need each other may wait for
each other for ever."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.tailrace.conftest import SECONDS, Project

SPY = """
import json, sys, threading

class Spy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(json.dumps(["imported", threading.current_thread().name, name]), flush=True)

from tailrace.cli.main import run

sys.meta_path.insert(0, Spy)
sys.exit(run(json.loads(sys.argv[1])))
"""


def imported_in_threads(project: Project, *words: str) -> list[list[str]]:
    """Thread and module of each import outside of the main thread while a command runs, in an interpreter that has
    imported nothing before. Codecs of texts are left out: they import nothing that another thread could hold."""
    ran = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps(words)], cwd=project.folder, env=project._environment(None),
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["imported"')]
    return [each[1:] for each in told if not each[2].startswith("encodings.")]
