"""Sockets are waited for whatever their numbers."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from tailrace.eventstore.readiness import readable, writable

_HIGH = 2000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, of which the first has a number that ``select`` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= _HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_HIGH + 100, hard))
    low, other = socket.socketpair()
    with low, other, socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)) as high:
        yield high, other
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_socket_of_a_high_number_is_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    high, other = pair
    assert high.fileno() >= _HIGH
    assert not readable([high, other], 0.01)
    assert writable(high, 0)
    other.send(b"x")
    assert readable([other, high], 60)


def test_a_broken_socket_is_ready_and_a_closed_one_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    high, other = pair
    other.close()
    assert readable([high], 60)
    high.close()
    with pytest.raises(ValueError, match="file descriptor"):
        readable([high], 0)
