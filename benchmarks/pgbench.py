"""A steady load that waits for nothing: transactions on a schedule of their own, and when each of them committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from benchmarks.options import Options
from tailrace.embedded import PostgresServer

Commit = tuple[int, int]  # who committed, and which of its transactions it was


def load(
    server: PostgresServer, script: str, clients: int, options: Options, folder: Path
) -> tuple[dict[Commit, float], float]:
    """pgbench for ``warmup`` and ``seconds`` at ``rate`` transactions a second (``--rate``: Poisson). ``script`` counts
    its transactions in ``:number``. When each commit came back to it (seconds since 1970), and the longest that it was
    behind its schedule."""
    path = folder / "commit.sql"
    path.write_text(script)
    seconds = options["warmup"] + options["seconds"]
    command: list[str | Path] = [server.bin("pgbench"), "-n", "-M", "prepared", "-f", path, "-D", "number=0"]
    command += ["-c", str(clients), "-T", str(seconds), "-R", str(options["rate"]), "-l"]
    command += ["--log-prefix", folder / "pgbench", server.dsn()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pgbench failed:\n{done.stderr}")
    commits: dict[Commit, float] = {}
    late = 0
    for log in folder.glob("pgbench.*"):
        for line in log.read_text().splitlines():
            client, number, _, _, whole, micros, lag = (int(word) for word in line.split())
            commits[client, number] = whole + micros / 1e6
            late = max(late, lag)
    return commits, late / 1e6
