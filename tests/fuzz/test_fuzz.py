"""What ``make fuzz`` found stays right, and so does what a short run of it makes."""

from __future__ import annotations

import pytest

from tests.fixtures.scale import Scale
from tests.fuzz.decoders import check
from tests.fuzz.fuzzing import Fuzzer
from tests.fuzz.targets import STREAM, TARGETS


@pytest.mark.parametrize("name", STREAM.corpus())
def test_both_decoders_agree_on_the_corpus(name: str) -> None:
    check(STREAM.corpus()[name])


def test_both_decoders_agree_on_what_a_short_run_makes(scale: Scale) -> None:
    run(STREAM.name, scale.pick(smoke=150, full=20_000))


def test_any_batch_of_kafka_has_a_clear_outcome_in_a_short_run(scale: Scale) -> None:
    """The corpus comes first."""
    run("batches", scale.pick(smoke=60, full=20_000))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["envelopes", "transactions"])
def test_any_record_of_kafka_has_a_clear_outcome_in_a_short_run(target: str, scale: Scale) -> None:
    run(target, scale.pick(smoke=40, full=5_000))


def run(target: str, steps: int) -> None:
    fuzzer = Fuzzer(TARGETS[target], seed=1)
    for _ in range(steps):
        fuzzer.step()
    assert len(fuzzer.reached) > 30
