"""The demo of Kafka checks itself: here it runs."""

from __future__ import annotations

import io

import pytest

from tailrace.demo.kafka_story import run_kafka_demo
from tailrace.embedded.kafka_jars import JARS_VARIABLE
from tailrace.terminal import Output
from tests.support.installed import kafka_jars


@pytest.mark.servers
@pytest.mark.timeout(600)
def test_what_goes_from_postgres_to_kafka_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JARS_VARIABLE, str(kafka_jars()))
    shown = io.StringIO()
    run_kafka_demo(Output(stdout=shown, stderr=shown), keep=False)
    assert "checks, all held" in shown.getvalue()
    assert "orders:" in shown.getvalue()
