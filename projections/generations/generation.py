"""A generation as the catalog keeps it: everything that is needed to apply, promote and drop it without the code that
built it. So a deployment whose code does not even import can be rolled back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache

import pyarrow as pa

from tailrace.eventstore.errors import IntegrityError, damaged_row
from tailrace.eventstore.metadata.generations import (
    GenerationInfo,
    GenerationState,
    InputNeed,
    NewGeneration,
    is_partial,
)
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Cut, Fence
from tailrace.projections.definition.model import PROJECTION_NAME, STAGE_NAME
from tailrace.projections.generations.step_files import StepFiles, folder_of, schema_bytes, schema_from_bytes
from tailrace.projections.sinks import record
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.record import SinkClasses
from tailrace.projections.sinks.specs import SinkSpec


@dataclass(frozen=True, slots=True)
class Pin:
    """The past position that a generation was built for; it is never refreshed. ``text`` is the position as the user
    wrote it. ``computed_inputs`` are the projections whose results were not kept there and were computed with it, with
    the fingerprints of their definitions."""

    text: str
    cut: Cut
    computed_inputs: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        moment = self.cut.commit_ts.isoformat() if self.cut.commit_ts else None
        below, inside = dict(self.cut.below_lsn), dict(self.cut.inside)
        return json.dumps(
            {
                "text": self.text,
                "epoch": self.cut.epoch,
                "below_lsn": below,
                "inside": inside,
                "commit_ts": moment,
                "anew": dict(self.computed_inputs),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Pin:
        data = json.loads(text)
        moment = datetime.fromisoformat(data["commit_ts"]) if data["commit_ts"] else None
        cut = Cut(data["epoch"], data["below_lsn"], moment, data["inside"])
        return cls(data["text"], cut, data.get("anew", {}))


@dataclass(frozen=True, slots=True)
class SampleProof:
    """The proof that keys may be followed (``tailrace.projections.refresh.by_key.samples``). It holds for these
    ``versions`` of the columns of the inputs' topics. ``failed``: why the generation must be computed in full; None: it
    need not be. ``trusted``: the author's word (``trust``) took the place of the plan. ``never_null``: the plan leaves
    out rows with NULL for their key, so that they concern no row of the result. ``subqueries``: the scalar subqueries
    that are constants as long as their values stay, in their author's words, with the inputs that they read (None: of a
    version that did not look for them, and believed no more); ``apart``: the inputs that nothing else reads."""

    versions: Mapping[str, int]
    failed: str | None = None
    trusted: bool = False
    never_null: bool = False
    subqueries: Mapping[str, Sequence[str]] | None = None
    apart: Sequence[str] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> SampleProof:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether another ``engine`` (with the versions that matter) gives a generation's rows as Spark does, for these
    ``versions`` of the columns of the inputs' topics. ``failed``: the first that differs, or what the engine cannot do;
    None: all that were compared are equal. ``seconds``: of computing everything on it (None: it was compared on some
    rows alone). ``over``: of partial results, whether it gives the rows of the definition over them, too."""

    engine: str
    versions: Mapping[str, int]
    failed: str | None = None
    seconds: float | None = None
    over: bool = False

    @property
    def words(self) -> str:
        """What was found, for people."""
        return f"equal to Spark on {self.engine}" if self.failed is None else f"Spark alone: {self.failed}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Parity | None:
        """None for what is no record of ours: then it is compared again."""
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError):
            return None
        return found if isinstance(found.versions, dict) else None


@dataclass(frozen=True, slots=True)
class Generation:
    """One build of a projection. ``pin`` is None when it follows the log; a ``preview`` has a label, is never promoted
    and never refreshed. ``sink_text`` is parsed when the sink is needed: a sink whose module does not load must not
    hinder anything else."""

    projection: str
    number: int
    fingerprint: str
    sink_text: str
    key: tuple[str, ...]
    schema: pa.Schema
    partitions: int
    split: int
    pin: Pin | None
    state: GenerationState
    frozen_at: int | None
    created_at: datetime
    inputs: tuple[InputNeed, ...] = ()
    preview: str | None = None
    checked: SampleProof | None = None
    parity: Parity | None = None

    @classmethod
    def of(cls, info: GenerationInfo) -> Generation:
        """Raises IntegrityError for a name that no definition has: files, folders and tables are named by it."""
        if not any(form.fullmatch(info.projection) for form in (PROJECTION_NAME, STAGE_NAME)):
            raise IntegrityError(
                f"{info.projection[:80]!r} is no name of a projection; nothing was done with it",
                hint="who wrote that into the catalog? remove its rows from generations, or restore the catalog",
            )
        return cls(
            projection=info.projection,
            number=info.generation,
            fingerprint=info.fingerprint,
            sink_text=info.sink,
            key=info.key,
            schema=schema_from_bytes(info.schema),
            partitions=info.partitions,
            split=info.split,
            pin=Pin.from_json(info.as_of) if info.as_of else None,
            state=info.state,
            frozen_at=info.frozen_at,
            created_at=info.created_at,
            inputs=info.inputs,
            preview=info.preview,
            checked=SampleProof.from_json(info.checked) if info.checked else None,
            parity=Parity.from_json(info.parity) if info.parity else None,
        )

    def begun(self) -> NewGeneration:
        """The generation as the catalog is told that it is begun, where it gets its number."""
        return NewGeneration(
            self.projection,
            fingerprint=self.fingerprint,
            sink=self.sink_text,
            key=self.key,
            schema=schema_bytes(self.schema),
            partitions=self.partitions,
            split=self.split,
            as_of=self.pin.to_json() if self.pin else None,
            preview=self.preview,
            inputs=self.inputs,
        )

    def sink(self, classes: SinkClasses) -> SinkSpec:
        """Raises NoSink when the record is not one of ours, and when the class of a user's own sink is not found."""
        return record.spec_from_text(self.sink_text, classes)

    @property
    def is_stage(self) -> bool:
        """Whether it is of partial results, which are in no sink."""
        return is_partial(self.projection)

    @property
    def stage_name(self) -> str:
        """The name of its own partial results."""
        return f"{self.projection}.{self.number}"

    @property
    def sink_name(self) -> str | None:
        """The entry of ``[sinks]``; None for a user's own sink, which has none."""
        return record.sink_name(self.sink_text)

    def target(self, store_name: str, log_id: str) -> Target:
        """The generation as its sink knows it."""
        return Target(
            store=store_name,
            log_id=log_id,
            projection=self.projection,
            generation=self.number,
            key=self.key,
            schema=self.schema,
            partitions=self.partitions,
            split=self.split,
            preview=self.preview is not None,
        )

    def fence(self, log_id: str, step: DerivedRun) -> Fence:
        """The fence of the sink after ``step``."""
        return Fence(log_id, self.projection, self.number, step.to_epoch, files_of(step).epoch_hash)

    def __str__(self) -> str:
        return f"generation {self.number} of projection {self.projection!r}"


@lru_cache(maxsize=16)  # each refresh asks for those of two steps ten times
def files_of(step: DerivedRun) -> StepFiles:
    """The files of a committed step. Raises IntegrityError when the record is not one of ours, or names a
    file that is not the generation's own: files of forgotten steps are removed."""
    if len(step.files) != 1:
        raise IntegrityError(
            f"the step of {step.projection!r} to epoch {step.to_epoch} has a record this version does not know",
            hint="install the version of Tailrace that wrote it, or rebuild the projection",
        )
    files = StepFiles.from_data(step.files[0])
    folder = folder_of(step.projection, step.generation)
    for path in sorted(files.paths()):
        if path.rpartition("/")[0] != folder:
            row = f"derived: projection {step.projection}, generation {step.generation}, from_epoch {step.from_epoch}"
            raise damaged_row(row, f"{path} is not in {folder}, where the generation's files are")
    return files
