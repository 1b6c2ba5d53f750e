"""Servers for the demo and the tests: Postgres and Redis from PyPI wheels, Kafka from its jars.

Free ports, temporary folders, no traces: a server lives at most as long as the process that started it. A guard process
of our own (``guard.py``) starts the servers and keeps their folders, so that nothing is left behind even when the
starting process is killed with -9.
"""

from __future__ import annotations

from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.postgres import PostgresServer
from tailrace.embedded.redis import RedisServer

__all__ = ["KafkaServer", "PostgresServer", "RedisServer"]
