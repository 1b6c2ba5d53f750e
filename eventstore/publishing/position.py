"""How far a publication is: what its destination keeps beside the records, in the same transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from tailrace.eventstore.errors import IntegrityError, OperatorError
from tailrace.eventstore.log.log import Log

_FORMAT = 1


Inside = Mapping[str, Mapping[str, int]]
"""By topic and partition (as texts, for JSON) the next offset."""


@dataclass(frozen=True, slots=True)
class Towards:
    """The step of a projection that is being published, and how much is: all before row ``row`` of ``bucket``."""

    generation: int
    epoch: int
    step_hash: str
    bucket: int
    row: int


@dataclass(frozen=True, slots=True)
class Position:
    """All epochs of the log up to ``epoch`` are published; ``epoch_hash`` is that epoch's (both empty: none is). With
    ``inside``, of that last epoch only the rows before these offsets.

    Of a projection: the result after the step of ``generation`` to ``epoch`` is published, and ``epoch_hash`` is that
    step's; with ``towards`` also a part of what leads to another step."""

    log_id: str
    epoch: int = 0
    epoch_hash: str = ""
    inside: Inside = field(default_factory=dict)
    generation: int = 0
    towards: Towards | None = None

    @property
    def whole_epoch(self) -> int:
        """Up to which epoch there is nothing more to publish."""
        return self.epoch - 1 if self.inside else self.epoch

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, text: bytes, place: str) -> Position:
        """Raises IntegrityError, naming the ``place``, for what Tailrace did not write."""
        try:
            found = json.loads(text)
            if found.pop("format") == _FORMAT:
                towards = found.pop("towards", None)
                position = cls(**found, towards=Towards(**towards) if towards else None)
                if isinstance(position.epoch, int) and isinstance(position.inside, dict):
                    return position
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise IntegrityError(
            f"{place} holds a position that this Tailrace does not read",
            hint="it was written by a newer Tailrace, or by something else: look at the last record there",
        )


def require_same_log(log: Log, position: Position, publication: str, place: str) -> None:
    """Raises OperatorError for the position of another log."""
    if position.log_id != log.log_id:
        raise OperatorError(
            f"publication {publication}: {place} holds the position of log {position.log_id}; this store is log "
            f"{log.log_id}",
            hint="another store publishes under this name: give one of the two another name. If this store replaces it,"
            " delete that topic of positions, and what was published, and publish anew",
        )


def require_ours(log: Log, position: Position, publication: str, place: str) -> None:
    """Raises OperatorError for the position of another log, or one that this log never had: what was published then
    is not what this log holds."""
    require_same_log(log, position, publication, place)
    if position.generation or position.towards is not None:
        raise OperatorError(
            f"publication {publication}: {place} holds the position of a projection, and topics are to be published",
            hint=f"give one of the two another name, or delete {place}, and what was published, and publish anew",
        )
    if not position.epoch:
        return
    head = log.head()
    if head is None or head.epoch < position.epoch:
        raise OperatorError(
            f"publication {publication}: epoch {position.epoch} is published, and the log ends at epoch "
            f"{0 if head is None else head.epoch}",
            hint="the log was restored from a backup that is older than what was published: restore a newer one, or"
            f" delete {place}, and what was published, and publish anew",
        )
    (info,) = log.epochs(position.epoch - 1, 1)
    if info.hash != position.epoch_hash:
        raise OperatorError(
            f"publication {publication}: epoch {position.epoch} was published with the hash {position.epoch_hash}, and"
            f" has the hash {info.hash} in this log",
            hint="the log was restored from a backup and went on in another way: what was published since is not in"
            f" it. Delete {place}, and what was published, and publish anew",
        )
