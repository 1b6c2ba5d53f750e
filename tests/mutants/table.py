"""Which tests stand for which modules: fast ones, those first that most likely notice. New modules match by pattern."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support import REPOSITORY


@dataclass(frozen=True, slots=True)
class Area:
    """Modules that a promise hangs on, and files of tests that stand for each of them."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = (
    Area("feedback", ("cdc/stream/feedback.py",), ("tests/cdc/stream/test_feedback.py",)),
    Area(
        "append",
        ("cdc/stream/append.py",),
        (
            "tests/cdc/stream/test_append.py", "tests/cdc/snapshot/test_added_tables.py",
            "tests/cdc/recording/test_recording.py",
        ),
    ),
    Area(
        "append",
        (
            "eventstore/streams/writing/append.py", "eventstore/streams/writing/event_ids.py",
            "eventstore/streams/writing/several.py", "eventstore/streams/database/source.py",
        ),
        (
            "tests/eventstore/streams/test_append.py", "tests/eventstore/streams/test_codec.py",
            "tests/eventstore/streams/test_several.py", "tests/eventstore/streams/test_snapshots.py",
        ),
    ),
    Area(
        "personal values",
        (
            "eventstore/streams/personal/*.py", "eventstore/streams/forget.py",
            "eventstore/streams/database/personal_rows.py", "eventstore/streams/database/subject_keys.py",
        ),
        ("tests/eventstore/streams/test_personal.py",),
    ),
    Area(
        "decisions",
        ("eventstore/streams/deciding/*.py", "eventstore/streams/models/*.py", "eventstore/streams/load.py"),
        (
            "tests/eventstore/streams/test_upcasters.py", "tests/eventstore/streams/test_compatibility.py",
            "tests/eventstore/streams/test_codec.py", "tests/eventstore/streams/test_handle.py",
            "tests/eventstore/streams/test_snapshots.py",
        ),
    ),
    Area(
        "writer",
        ("eventstore/log/append_plan.py", "eventstore/log/commit.py", "eventstore/log/writer.py"),
        (
            "tests/eventstore/metadata/test_quarantine.py", "tests/eventstore/log/test_append.py",
            "tests/eventstore/log/test_writer.py", "tests/eventstore/log/test_unknown_commit.py",
            "tests/eventstore/log/test_read.py", "tests/eventstore/maintenance/test_repartition.py",
        ),
    ),
    Area(
        "leases",
        ("eventstore/catalog/leases.py", "eventstore/catalog/terms.py"),
        (
            "tests/eventstore/catalog/test_leases.py", "tests/eventstore/maintenance/test_workers.py",
            "tests/eventstore/catalog/test_clocks.py",
        ),
    ),
    Area(
        "compaction",
        (
            "eventstore/segment/merge.py", "eventstore/segment/row_order.py", "eventstore/segment/select.py",
            "eventstore/state/assembly.py", "eventstore/state/bucket_passes.py", "eventstore/state/compaction.py",
            "eventstore/state/input.py", "eventstore/state/latest_rows.py", "eventstore/state/moved_cells.py",
            "eventstore/state/state.py",
        ),
        (
            "tests/eventstore/state/test_*.py", "tests/eventstore/segment/test_*.py",
            "tests/eventstore/log/test_read.py", "tests/eventstore/maintenance/files/test_merge.py",
            "tests/eventstore/maintenance/test_repartition.py",
        ),
    ),
    Area(
        "affected keys",
        ("eventstore/state/key_lookup.py", "projections/generations/key_set.py"),
        (
            "tests/projections/generations/test_key_set.py", "tests/eventstore/state/test_key_lookup.py",
        ),
    ),
    Area(
        "affected keys",
        ("projections/refresh/by_key/incremental.py", "projections/refresh/by_key/restricted_inputs.py"),
        (
            "tests/projections/refresh/test_affected_keys.py", "tests/projections/refresh/test_restricted_inputs.py",
            "tests/projections/refresh/test_computed_keys.py", "tests/projections/refresh/test_incremental.py",
        ),
    ),
    Area(
        "fences",
        ("projections/refresh/apply.py",),
        ("tests/projections/refresh/test_apply.py",),
    ),
    Area(
        "fences",
        ("projections/sinks/contract.py", "projections/sinks/folder.py"),
        (
            "tests/projections/sinks/test_target.py", "tests/projections/sinks/test_folder.py",
            "tests/projections/sinks/parquet/test_*.py",
        ),
    ),
    *(
        Area(
            "fences",
            (f"projections/sinks/{sink}/sink.py", f"projections/sinks/{sink}/scripts.py"),
            (f"tests/projections/sinks/{sink}/test_*.py", "tests/projections/sinks/test_contract.py"),
        )
        for sink in ("parquet", "postgres", "redis", "search")
    ),
    Area(
        "wire",
        ("cdc/wire/*.py",),
        (
            "tests/cdc/wire/test_*.py", "tests/cdc/columnar/test_d*.py", "tests/cdc/columnar/test_protect.py",
            "tests/cdc/columnar/test_relations.py", "tests/cdc/stream/test_assemble.py",
            "tests/cdc/stream/test_spool.py",
        ),
    ),
    Area(
        "kafka epochs",
        (
            "cdc/kafka/repeats/duplicates.py", "cdc/kafka/epochs/epoch.py", "cdc/kafka/epochs/snapshots.py",
            "cdc/kafka/epochs/transactions.py",
        ),
        (
            "tests/cdc/kafka/repeats/test_duplicates.py", "tests/cdc/kafka/epochs/test_epoch.py",
            "tests/cdc/kafka/epochs/test_snapshots.py", "tests/cdc/kafka/epochs/test_transactions.py",
        ),
    ),
    Area(
        "debezium",
        ("cdc/kafka/decoding/*.py", "cdc/kafka/decoding/values/*.py"),
        ("tests/cdc/kafka/decoding/test_[dgv]*.py", "tests/cdc/kafka/decoding/test_json_values.py"),
    ),
    Area(
        "kafka",
        (
            "eventstore/kafka/batches.py", "eventstore/kafka/build.py", "eventstore/kafka/codecs.py",
            "eventstore/kafka/records.py",
        ),
        ("tests/eventstore/kafka/test_records.py", "tests/eventstore/kafka/test_build.py"),
    ),
    Area(
        "against source",
        ("projections/lifecycle/source_values.py", "projections/definition/sql/source_text.py"),
        (
            "tests/projections/lifecycle/test_source_values.py", "tests/projections/definition/test_source_text.py",
        ),
    ),
)  # fmt: skip


def matching(patterns: tuple[str, ...]) -> list[str]:
    """The files that patterns name, in their order, each once."""
    found = [str(path.relative_to(REPOSITORY)) for each in patterns for path in sorted(REPOSITORY.glob(each))]
    return list(dict.fromkeys(path for path in found if not path.endswith("__init__.py")))
