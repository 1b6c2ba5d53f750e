"""``python -m tailrace``: the command line without an installed script."""

from __future__ import annotations

import sys

from tailrace.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
