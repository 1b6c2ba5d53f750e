"""What ``projection gc`` tells of a sink that is not there any more."""

from __future__ import annotations

import pyarrow as pa

from tailrace.eventstore.metadata.generations import GenerationState, NewGeneration
from tailrace.eventstore.settings import StoreSettings
from tailrace.eventstore.store import Store
from tailrace.projections.sinks.record import spec_to_text
from tailrace.projections.sinks.specs import ParquetFolder
from tests.tailrace.conftest import Project


def test_a_sink_that_was_removed_hinders_what_was_built_in_it_alone(project: Project) -> None:
    project.configure('[sinks.files]\nkind = "parquet"\npath = "files"')
    with Store.open(StoreSettings(), create=True, root=project.folder) as store:
        for name, sink in (("first", "gone"), ("first", "files"), ("second", "files")):
            number = store.derived.create_generation(
                NewGeneration(
                    name,
                    fingerprint="",
                    sink=spec_to_text(ParquetFolder(sink)),
                    key=["id"],
                    schema=pa.schema([("id", pa.int64())]).serialize().to_pybytes(),
                    partitions=1,
                    split=1,
                )
            )
            store.derived.set_state(name, number, GenerationState.FAILED)

    done = project.run("projection", "gc")

    assert (done.code, done.out) == (2, "first: dropped g2 and 0 files\nsecond: dropped g1 and 0 files\n")
    assert "first: not all was dropped\nerror: there is no sink 'gone'" in done.err
    mistyped = project.run("projection", "gc", "second", "fist")
    assert (mistyped.code, mistyped.out) == (2, "") and "not all was dropped" not in mistyped.err
    told = project.ok("projection", "gc", "first", "--generation", "1").out.splitlines()
    assert told[0] == "first: dropped g1 and 0 files"
    assert told[1] == "  what its sink holds of it stays there: there is no sink 'gone'"
