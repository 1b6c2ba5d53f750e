"""The event trigger that tells of DDL in the stream: SQL that can be run again and again, and taken back.

``VERSION`` is that of its messages; the comment on trigger ``tailrace_ddl_end`` says which one a database has.
"""

from __future__ import annotations

from pathlib import Path

VERSION = 1
_HERE = Path(__file__).parent


def install_script() -> str:
    return (_HERE / "install.sql").read_text(encoding="utf-8")


def remove_script() -> str:
    return (_HERE / "remove.sql").read_text(encoding="utf-8")
