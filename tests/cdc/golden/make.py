"""Make the golden recordings anew, from a real server: ``make golden``. Look at what changed before you commit it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tailrace.embedded import PostgresServer
from tests.fixtures.servers import FAST_SETTINGS
from tests.support.capturing import Site, execute
from tests.support.recordings import GOLDEN, SCENARIOS, record


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        PostgresServer(settings=FAST_SETTINGS, trust=True) as server,
    ):
        for name, scenario in SCENARIOS.items():
            execute(server.dsn(), f"CREATE DATABASE {name}")
            site = Site.at(Path(folder) / name, server.dsn(name), name=name, **scenario.settings)
            file = GOLDEN / f"{name}.rec"
            file.unlink(missing_ok=True)
            rows = record(site, scenario, file)
            (GOLDEN / f"{name}.json").write_text(
                "\n".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows) + "\n",
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
