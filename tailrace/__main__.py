"""``python -m tailrace``, and the main file of ``spark-submit``: the command line without an installed script."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Of a program that is a file, the folder is searched for modules first: `config` would be ours, not the user's.
    own = Path(__file__).resolve().parent
    sys.path[:] = [*(path for path in sys.path if Path(path).resolve() != own), str(own.parent)]

from tailrace.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
