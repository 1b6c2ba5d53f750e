"""Both decoders agree on the corpus of ``make fuzz``, and on what a short run of it makes."""

from __future__ import annotations

import pytest

from tests.fixtures.scale import Scale
from tests.fuzz.decoders import check
from tests.fuzz.fuzzing import Fuzzer, corpus


@pytest.mark.parametrize("name", corpus())
def test_both_decoders_agree_on_the_corpus(name: str) -> None:
    check(corpus()[name])


def test_both_decoders_agree_on_what_a_short_run_makes(scale: Scale) -> None:
    fuzzer = Fuzzer(corpus().values(), seed=1)
    for _ in range(scale.pick(smoke=150, full=20_000)):
        fuzzer.step()
    assert len(fuzzer.reached) > 100
