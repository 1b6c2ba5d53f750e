"""Which log the slot and the publication of a source belong to. Their names come from the store's name, which a copy of
the project has, too.

A slot can carry nothing of ours. So the publication, which is made before it and has its name, speaks for both: its
comment holds ``tailrace log`` and the log's id, written in the transaction that makes it. Failover, upgrade and dump
keep a comment; only the publication's owner can change it. Where there is none (the publication was made by hand, by an
earlier version, or is another role's), a slot belongs to this store only if the store has loaded from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from psycopg import Connection, sql

from tailrace.cdc.postgres.connect import Address, literal, quote, translate_errors
from tailrace.cdc.postgres.publication import Publication
from tailrace.cdc.postgres.slot import SlotInfo, require_of_database
from tailrace.eventstore.errors import NotOwner, manual_page

Row = tuple[object, ...]
_MARK = re.compile(r"\btailrace log ([0-9a-f]{32})\b")


def owner_of(publication: Publication | None) -> str | None:
    """The log that its comment names; None when it names none."""
    found = _MARK.search(publication.comment) if publication is not None else None
    return found[1] if found else None


def require_own(
    publication: Publication | None,
    slot: SlotInfo | None,
    log_id: str,
    address: Address,
    *,
    database: str,
    loaded: bool,
) -> None:
    """Raise before a slot or publication of another log is used, replaced or dropped. ``loaded``: this store's record
    says that it streams from a slot of this name. Raises NotOwner, OperatorError for a slot of another database."""
    if slot is not None:
        require_of_database(slot, database, address)
    owner = owner_of(publication)
    if owner == log_id or (owner is None and (loaded or slot is None)):
        return
    name = publication.name if publication is not None else slot.name if slot is not None else ""
    what = "the slot" if slot is not None else "the publication"
    raise NotOwner(
        f"{what} {name} of {address.text}",
        owner,
        log_id,
        hint="if another store captures this source, choose another [store] name here; if that store is given up, "
        "`tailrace init --take-over` makes slot and publication this store's, and the other one is then refused; see "
        + manual_page("operations/running.md", "Two stores of one name"),
    )


def marked_comment(publication: Publication | None, log_id: str) -> str:
    """The publication's comment with this log in it. What somebody else wrote there stays."""
    mark = f"tailrace log {log_id}"
    comment = publication.comment if publication is not None else ""
    if _MARK.search(comment):
        return _MARK.sub(mark, comment)
    return f"{comment} ({mark})" if comment else mark


def mark_statement(name: str, publication: Publication | None, log_id: str) -> str:
    """COMMENT ON PUBLICATION, for a publication that is there or was just made."""
    return f"COMMENT ON PUBLICATION {quote(name)} IS {literal(marked_comment(publication, log_id))}"


def mark(connection: Connection[Row], publication: Publication | None, log_id: str, address: Address) -> None:
    """Mark a publication that names no log as this one's, if we may. Only after ``require_own``."""
    if publication is not None and publication.owned and owner_of(publication) is None:
        with translate_errors("marking the publication", address):
            connection.execute(sql.SQL(mark_statement(publication.name, publication, log_id)))


def other_logs(connection: Connection[Row], log_id: str, address: Address) -> Mapping[str, str]:
    """By publication the other logs that the publications of this database name."""
    with translate_errors("reading the publications", address):
        rows = connection.execute(
            "SELECT pubname, pg_catalog.obj_description(oid, 'pg_publication') FROM pg_catalog.pg_publication"
            " WHERE pg_catalog.obj_description(oid, 'pg_publication') IS NOT NULL ORDER BY 1"
        ).fetchall()
    marks = {str(name): _MARK.search(str(comment)) for name, comment in rows}
    return {name: found[1] for name, found in marks.items() if found and found[1] != log_id}
