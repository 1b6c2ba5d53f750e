"""A script that starts both servers and then ends in a way that its argument names; see test_nothing_left.py.

Standard library and the starter only, so that it also runs as another user from a bare copy. Prints one JSON line:
what exists while the servers run. Goes on when a line comes in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from tailrace.embedded import PostgresServer, RedisServer
from tailrace.embedded.guard import descendants
from tailrace.embedded.process import GuardProcess


def main(ending: str) -> None:
    with PostgresServer() as postgres, RedisServer() as redis:
        query = [str(postgres.bin("psql")), "-Atc", "SELECT current_setting('wal_level')"]
        environment = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(postgres.port),
            "PGUSER": "postgres",
            "PGPASSWORD": postgres.password,
        }
        traces = {
            "pids": [*descendants(GuardProcess.current().pid), GuardProcess.current().pid],
            "folders": [str(postgres.data_dir.parent), str(redis.data_dir.parent)],
            "ports": [postgres.port, redis.port],
            "program": os.readlink(f"/proc/{postgres.pid}/exe"),
            "server_uid": os.stat(f"/proc/{postgres.pid}").st_uid,
            "redis_uid": os.stat(f"/proc/{redis.pid}").st_uid,
            "wal_level": subprocess.run(
                query, capture_output=True, text=True, check=True, env=environment
            ).stdout.strip(),
        }
        print(json.dumps(traces), flush=True)
        sys.stdin.readline()
        if ending == "exception":
            raise RuntimeError("the code between start and stop failed")
        if ending == "postmaster killed":
            os.kill(postgres.pid, signal.SIGKILL)
        if ending == "guard killed":
            os.kill(GuardProcess.current().pid, signal.SIGKILL)
        if ending == "no clean-up":
            os._exit(3)
        while ending in ("signal", "guard killed"):
            time.sleep(0.05)  # not one long sleep: a signal just before it would be noticed only behind it


if __name__ == "__main__":
    main(sys.argv[1])
