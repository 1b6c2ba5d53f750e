"""A generation as the catalog keeps it: everything that is needed to apply, promote and drop it without the code that
built it. So a deployment whose code does not even import can be rolled back."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import IntegrityError
from tailrace.eventstore.metadata.generations import GenerationInfo, GenerationState, InputNeed
from tailrace.eventstore.metadata.projection_steps import DerivedRun
from tailrace.eventstore.model.position import Cut, Fence
from tailrace.projections.generations.step_files import StepFiles, schema_from_bytes
from tailrace.projections.sinks.contract import NoSink, Target
from tailrace.projections.sinks.specs import ParquetFolder, PostgresTable, RedisCache, SearchIndex, SinkSpec

_SPECS = {spec.__name__: spec for spec in (PostgresTable, RedisCache, SearchIndex, ParquetFolder)}
_OWN = "own"


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
    """The proof that keys may be followed (``tailrace.projections.refresh.samples``). It holds for these ``versions``
    of the columns of the inputs' topics. ``failed``: why the generation must be computed in full; None: it need not be.
    ``trusted``: the author's word (``trust``) took the place of the plan. ``never_null``: the plan leaves out rows with
    NULL for their key, so that they concern no row of the result."""

    versions: Mapping[str, int]
    failed: str | None = None
    trusted: bool = False
    never_null: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> SampleProof:
        return cls(**json.loads(text))


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

    @classmethod
    def of(cls, info: GenerationInfo) -> Generation:
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
        )

    @property
    def sink(self) -> SinkSpec:
        """Raises NoSink when a user's own sink does not load."""
        return spec_from_text(self.sink_text)

    @property
    def sink_name(self) -> str | None:
        """The entry of ``[sinks]``; None for a user's own sink, which has none."""
        name: str | None = json.loads(self.sink_text).get("sink")
        return name

    def target(self, store_name: str) -> Target:
        """The generation as its sink knows it."""
        return Target(
            store=store_name,
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


def files_of(step: DerivedRun) -> StepFiles:
    """The files of a committed step. Raises IntegrityError when the record is not one of ours."""
    if len(step.files) != 1:
        raise IntegrityError(
            f"the step of {step.projection!r} to epoch {step.to_epoch} has a record this version does not know",
            hint="install the version of Tailrace that wrote it, or rebuild the projection",
        )
    return StepFiles.from_data(step.files[0])


def spec_to_text(spec: SinkSpec) -> str:
    """A sink's specification as JSON. A user's own is a pickle: its class has to be importable later."""
    name = type(spec).__name__
    if _SPECS.get(name) is type(spec):
        return json.dumps({"kind": name, **asdict(spec)}, ensure_ascii=False)
    return json.dumps({"kind": _OWN, "pickle": base64.b64encode(pickle.dumps(spec)).decode()})


def spec_from_text(text: str) -> SinkSpec:
    """Raises NoSink when a user's own sink cannot be imported any more."""
    data: dict[str, Any] = json.loads(text)
    kind = data.pop("kind")
    if kind == _OWN:
        return _own_spec(data["pickle"])
    spec: SinkSpec = _SPECS[kind](**{name: _freeze(value) for name, value in data.items()})
    return spec


class _SpecUnpickler(pickle.Unpickler):
    """Finds our classes under the module names that older stores have in their specifications. A project may have a
    module of such a name: its own class comes first."""

    _MOVED: ClassVar = {
        "projections.readers.base": "tailrace.projections.sinks.reader",
        "projections.readers.keyvalue": "tailrace.projections.sinks.keyvalue.reader",
        "projections.sinks.base": "tailrace.projections.sinks.contract",
        "projections.sinks.keyvalue": "tailrace.projections.sinks.keyvalue.sink",
        "projections.specs": "tailrace.projections.sinks.specs",
    }

    def find_class(self, module_name: str, name: str) -> Any:
        try:
            return super().find_class(module_name, name)
        except (ImportError, AttributeError):
            if module_name not in self._MOVED:
                raise
        return super().find_class(self._MOVED[module_name], name)


def _own_spec(text: str) -> SinkSpec:
    try:
        spec: SinkSpec = _SpecUnpickler(io.BytesIO(base64.b64decode(text))).load()
    except (pickle.UnpicklingError, ImportError, AttributeError, binascii.Error) as error:
        raise NoSink(
            f"a generation's sink is of a class that is not there any more: {error}",
            hint="make the module of the sink importable again",
        ) from error
    except Exception as error:
        raise NoSink(
            f"a generation's sink is of a class that does not load: {disclosure.describe_error(error)}",
            hint="mend the module of the sink",
        ) from error
    return spec


def _freeze(value: Any) -> Any:
    """JSON's lists as tuples, as specifications hold them."""
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, Mapping):
        return dict(value)
    return value
