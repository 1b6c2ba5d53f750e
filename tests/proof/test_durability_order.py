"""Promise 4: nothing is confirmed before it is durable, read off the system calls of the real process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from tests.proof.ledger import SCHEMA, Writers
from tests.proof.rig import Rig

pytestmark = pytest.mark.servers

# A standby status update leaves as CopyData: 'd', its length 38, 'r', then write, flush and apply position of 8 bytes
# each (protocol: "Streaming Replication Protocol"). strace -x prints such bytes in hexadecimal.
STATUS = re.compile(r'"\\x64\\x00\\x00\\x00\\x26\\x72((?:\\x[0-9a-f]{2}){8})((?:\\x[0-9a-f]{2}){8})')


def test_files_then_catalog_then_confirmation(database: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path, database, options="epoch_bytes = 16384")
    config = rig.folder / "tailrace.toml"
    config.write_text(config.read_text().replace("[sources.shop]", "inline_bytes = 0\n\n[sources.shop]"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA)
    rig.run("init")
    rig.run("capture", "--until-idle")
    with Writers(database, pause=0.005).writing():
        subprocess.run(["sleep", "3"], check=True)
    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2,sendto,sendmsg,write,openat,pwrite64"
    subprocess.run(
        [
            "strace",
            "-f",
            "-y",
            "-x",
            "-s",
            "64",
            "-o",
            trace,
            "-e",
            calls,
            *rig.command("capture", "--until-idle"),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    steps = durable_steps(trace.read_text().splitlines())
    assert steps.count("confirm") >= 3
    assert steps.count("file") >= 3
    check_order(steps)


def durable_steps(lines: list[str]) -> list[str]:
    """``file`` (a segment or its folder was flushed), ``catalog`` (SQLite's WAL was flushed), ``confirm`` (the
    confirmed position moved forward)."""
    steps: list[str] = []
    confirmed: str | None = None
    for line in lines:
        status = STATUS.search(line)
        if "sync(" in line and "/segments" in line:
            steps.append("file")
        elif "sync(" in line and "catalog.db" in line:
            steps.append("catalog")
        elif status is not None and status[2] != confirmed:
            if confirmed is not None:  # the first update repeats what was confirmed before
                steps.append("confirm")
            confirmed = status[2]
    return steps


def check_order(steps: list[str]) -> None:
    """A position moves only after a catalog commit that came after the last move, and that one after its files. The
    next epoch's files may already be flushed meanwhile: another thread writes them."""
    files, commits = 0, 0
    for step in steps:
        match step:
            case "file":
                files += 1
            case "catalog":
                commits += 1
            case "confirm":
                assert commits, f"confirmed without a catalog commit since the last confirmation: {steps}"
                assert files, f"confirmed before any file was flushed: {steps}"
                commits = 0
