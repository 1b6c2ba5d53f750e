"""Confirm an adoption: from then on the slot is native capture's."""

from __future__ import annotations

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.slot import SlotInfo, read_slot
from tailrace.cdc.setup import adopted
from tailrace.cdc.setup.adopted import Adoption
from tailrace.cdc.setup.continuity import check_system, require_source
from tailrace.eventstore.errors import OperatorError, UsageError
from tailrace.eventstore.model.info import SourceState
from tailrace.eventstore.model.position import format_lsn
from tailrace.eventstore.store import Store


def require_unconfirmed(store: Store, source: str) -> tuple[SourceState, Adoption]:
    """Raises UsageError for a source that was not taken over, or whose adoption was ended."""
    state = require_source(store, source)
    adoption = adopted.unconfirmed(store, state)
    if adoption is None:
        raise UsageError(
            f"source {source} is not in between: it was not taken over, or that was confirmed or taken back",
            hint="`tailrace adopt --dry-run` says what stands in the way of taking it over",
        )
    return state, adoption


def adopted_slot(state: SourceState, address: Address) -> SlotInfo:
    """The slot of an adoption. Raises OperatorError when it is gone, Mismatch on another system."""
    with connect(address, "tailrace adopt") as connection:
        check_system(connection, state, address)
        slot = read_slot(connection, state.slot, address)
    if slot is None:
        raise OperatorError(
            f"the replication slot {state.slot} is missing on {address.text}",
            hint=f"`tailrace source repair {state.name}` makes it again and compares every table with the log",
        )
    return slot


def confirm(store: Store, source: str, address: Address) -> Adoption:
    """Make an adoption final. A capture that runs takes note; the server frees the WAL that it kept. Raises UsageError,
    OperatorError when somebody else used the slot."""
    state, adoption = require_unconfirmed(store, source)
    slot = adopted_slot(state, address)
    if slot.confirmed_flush > state.through_lsn:
        raise OperatorError(
            f"slot {slot.name} was confirmed up to {format_lsn(slot.confirmed_flush)}, and the log reaches only "
            f"{format_lsn(state.through_lsn)}: the connector was started again, and what it took is in Kafka alone",
            hint=f"stop the connector; `tailrace source repair {source}` then compares every table with the log",
        )
    adopted.end(store, adoption, confirmed=True)
    return adoption
