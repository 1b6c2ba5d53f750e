"""Complaints of a Postgres server or libpq become errors that say what to do. No message carries a secret.

SQLSTATEs are those of the manual's appendix A. A connection that is refused has none (libpq gives text alone), so
those are known by the server's English text; another language falls back to the text itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from psycopg import pq

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError, UsageError, manual_page


class SlotActive(OperatorError):
    """55006: another process is connected to the slot; ``pid`` is its server process when known."""

    def __init__(self, message: str, *, hint: str = "", pid: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class RowTooLarge(OperatorError):
    """A row that the server cannot send, because it exceeds what one message or allocation may hold (1 GiB). A row that
    is too large as text is read in binary, which is half as long for bytea."""


class SlotLost(OperatorError):
    """The slot is missing or was invalidated: what it kept is gone and the stream cannot be continued from it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One kind of problem: how it shows, who acts, and what they should do. ``{where}`` is the server and database."""

    pattern: str
    error: type[TailraceError]
    what: str
    hint: str


_REFUSALS = (
    Advice(
        r"password authentication failed|no password supplied|SCRAM|PAM authentication failed",
        OperatorError,
        "the password for {where} was not accepted",
        "check user and password of the source's dsn; put the password into the environment variable it names",
    ),
    Advice(
        r'database ".*" does not exist',
        OperatorError,
        "there is no such database: {where}",
        "check the database name at the end of the source's dsn",
    ),
    Advice(
        r'role ".*" does not exist',
        OperatorError,
        "there is no such user: {where}",
        "check the user name of the source's dsn, or create the role WITH LOGIN REPLICATION",
    ),
    Advice(
        r"is not permitted to log in",
        OperatorError,
        "the user may not log in: {where}",
        "as a superuser: ALTER ROLE <user> LOGIN",
    ),
    Advice(
        r"permission denied for database",
        OperatorError,
        "the user may not connect: {where}",
        "GRANT CONNECT ON DATABASE <database> TO the source's user",
    ),
    Advice(
        r"no pg_hba\.conf entry",
        OperatorError,
        "the server's pg_hba.conf lets nobody in from here: {where}",
        "add a line for this host, user and database to pg_hba.conf and reload the server "
        "(logical replication needs the database's own line, not the keyword replication)",
    ),
    Advice(
        r"must be superuser or replication role|permission denied to start WAL sender",
        OperatorError,
        "the user may not replicate: {where}",
        "as a superuser: ALTER ROLE <user> REPLICATION (managed servers: grant rds_replication or the like)",
    ),
    Advice(
        r"exceeds max_wal_senders|max_wal_senders",
        TransientError,
        "all WAL senders of the server are taken: {where}",
        "raise max_wal_senders (needs a restart), or end a standby or capture that is no longer needed",
    ),
    Advice(
        r"too many clients|remaining connection slots|too many connections",
        TransientError,
        "the server has no connection left: {where}",
        "raise max_connections or close idle connections, then try again",
    ),
    Advice(
        r"database system is (starting up|shutting down|in recovery|not yet accepting)|not accepting connections",
        TransientError,
        "the server is starting or stopping: {where}",
        "wait until it accepts connections",
    ),
    Advice(
        r"unsupported startup parameter|pgbouncer|no such database: |unrecognized.* parameter \"replication\"",
        OperatorError,
        "a connection pooler answered instead of Postgres: {where}",
        "replication does not pass a pooler: give the source's dsn the server's own host and port",
    ),
    Advice(
        r"Temporary failure in name resolution",
        TransientError,
        "the name server does not answer for the host: {where}",
        "check the network and the host of the source's dsn",
    ),
    Advice(
        r"failed to resolve host|could not translate host name|Name or service not known",
        OperatorError,
        "the host name is not known: {where}",
        "check host and port of the source's dsn",
    ),
    Advice(
        r"connection refused|connection timeout|timeout expired|No route to host|Network is unreachable"
        r"|No such file or directory",
        TransientError,
        "nobody answers there: {where}",
        "check host and port of the source's dsn, and that the server runs and listens there",
    ),
    Advice(
        r"SSL SYSCALL error|SSL connection has been closed|closed the connection unexpectedly|reset by peer",
        TransientError,
        "the server or the network broke the connection while it was being made: {where}",
        "look at the server's log if it keeps happening",
    ),
    Advice(
        r"SSL|certificate|private key",
        OperatorError,
        "the encrypted connection could not be made: {where}",
        "check sslmode, sslrootcert and the other ssl options of the source's dsn, and whose files they name",
    ),
)  # fmt: skip
_TRANSIENT_STATES = {"57P01", "57P02", "57P03", "40001", "40P01", "53300", "57P05"}


def refusal(text: str, where: str, secret: str | None = None) -> TailraceError:
    """The error for a connection that libpq or the server refused with ``text``."""
    clean = scrub(text, secret)
    for advice in _REFUSALS:
        if re.search(advice.pattern, clean, re.IGNORECASE):
            return advice.error(advice.what.format(where=where) + f" ({_last_line(clean)})", hint=advice.hint)
    return TransientError(
        f"no connection to {where}: {_last_line(clean)}",
        hint="check the source's dsn and the server's log",
    )


def failure(state: str | None, text: str, doing: str, where: str, words: str | None = None) -> TailraceError:
    """The error for a statement or command that failed with SQLSTATE ``state`` (None: the connection broke).

    ``text`` is all that was said; only the kind of problem is read from it. ``words`` is what may be repeated of it
    (default: its first sentence, without what may be a value)."""
    line = disclosure.server_text(state or "08", _last_line(text)) if words is None else words
    if state is None or state.startswith("08") or state in _TRANSIENT_STATES:
        return TransientError(
            f"the connection to {where} broke while {doing}: {line}",
            hint="it is tried again; if it keeps happening look at the server's log",
        )
    if state == "55006":
        pid = re.search(r"PID (\d+)", text)
        number = int(pid.group(1)) if pid else None
        return SlotActive(
            f"the replication slot is in use by another process"
            f"{f' (server process {number})' if number else ''} while {doing} on {where}",
            hint="end the other capture; if its machine is gone: "
            + (f"SELECT pg_terminate_backend({number})" if number else "see pg_replication_slots.active_pid"),
            pid=number,
        )
    if state == "42501":
        return OperatorError(
            f"missing privilege while {doing} on {where}: {line}", hint=_privilege_hint(text)
        )
    if state == "53400" and "slots are in use" in text:
        return OperatorError(
            f"all replication slots of {where} are taken",
            hint="raise max_replication_slots (needs a restart), or drop one that nobody needs: "
            "SELECT slot_name, active, restart_lsn FROM pg_replication_slots",
        )
    if state == "53200" and "shared memory" in text:
        return OperatorError(
            f"the server has no room for more locks of tables, while {doing} on {where}: {line}",
            hint="raise max_locks_per_transaction (needs a restart) to at least what this says, or capture fewer"
            f" tables: {LOCKS_NEEDED}",
        )
    if "wal_level" in text:
        return OperatorError(
            f"{where} does not write the WAL that logical decoding needs: {line}",
            hint="set wal_level = logical and restart the server",
        )
    if state == "42704" and "replication slot" in text:
        return SlotLost(f"the replication slot is missing on {where}: {line}", hint=REPAIR_HINT)
    if state == "55000" and re.search(r"can(not| no longer) (get changes|be)|invalidated|obsolete", text):
        return SlotLost(f"the replication slot was invalidated on {where}: {line}", hint=REPAIR_HINT)
    if state in ("54000", "XX000") and re.search(_TOO_LARGE, text):
        return RowTooLarge(
            f"a row of {where} is too large for the server to send while {doing}: {line} (SQLSTATE {state})",
            hint=too_large_hint(),
        )
    if state == "42883" and "no binary output function" in text:
        return RowTooLarge(
            f"a row of {where} is too large for the server to send as text while {doing}, and one of the same "
            f"transaction cannot be sent in binary: {line} (SQLSTATE {state})",
            hint=too_large_hint(),
        )
    return OperatorError(
        f"the server refused while {doing} on {where}: {line} (SQLSTATE {state})",
        hint="the server's log says more",
    )


_TOO_LARGE = r"invalid memory alloc request size|Cannot enlarge string buffer|string buffer exceeds maximum"
_SMALLER = (
    "the server sends rows up to 1 GiB: store such values in pieces or outside of the table, or take the column or the "
    "table out of the publication (a column list; the source's patterns); see "
    + manual_page("capture/loading.md", "Rows over 1 GiB")
)
LOCKS_NEEDED = (  # each session may take as many, and those that take few leave theirs to others
    "SELECT 64 + count(*) / current_setting('max_connections')::int FROM pg_class"
    " WHERE oid >= 16384 AND relkind IN ('r', 'p', 'i', 'I', 't')"
)
REPAIR_HINT = (
    "what the slot kept is gone, so changes are missing: run `tailrace source repair`, which makes a new slot and "
    "compares every table with the log; "
    "raise max_slot_wal_keep_size or idle_replication_slot_timeout so that it does not happen again; see "
    + manual_page("capture/repair.md", "Repair")
)


def too_large_hint(slot: str = "") -> str:
    """What to do about RowTooLarge. With the name of the slot, where the row is in the WAL and so in its way."""
    if not slot:
        return _SMALLER
    return (
        f"{_SMALLER}. The row in the WAL stays in the slot's way whatever is done to the table: when that is mended, "
        f"run SELECT pg_drop_replication_slot('{slot}') and `tailrace source repair`, which makes a new slot and "
        "compares every table with the log"
    )


def from_psycopg(error: psycopg.Error, doing: str, where: str) -> TailraceError:
    """``failure`` for an error psycopg raised."""
    if error.sqlstate is None and not isinstance(error, psycopg.OperationalError):
        return OperatorError(
            f"{doing} on {where} failed: {disclosure.hide_quoted_values(_last_line(str(error)))}"
        )
    return failure(error.sqlstate, str(error), doing, where, server_text(error))


def server_text(error: psycopg.Error) -> str | None:
    """The part of a server's complaint that may be repeated; None when libpq complained."""
    diag = error.diag
    if diag.message_primary is None:
        return None
    return disclosure.server_text(error.sqlstate, diag.message_primary, diag.message_detail, diag.context)


def from_result(result: pq.abc.PGresult, doing: str, where: str) -> TailraceError:
    """``failure`` for a libpq result that is no success."""
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    text = result.error_message.decode(errors="replace")
    fields = (
        result.error_field(field)
        for field in (
            pq.DiagnosticField.MESSAGE_PRIMARY,
            pq.DiagnosticField.MESSAGE_DETAIL,
            pq.DiagnosticField.CONTEXT,
        )
    )
    primary, detail, context = (field.decode(errors="replace") if field else "" for field in fields)
    sqlstate = state.decode() if state else None
    words = disclosure.server_text(sqlstate, primary, detail, context) if primary else None
    return failure(sqlstate, text, doing, where, words)


def bad_dsn() -> UsageError:
    """A dsn that cannot be read. Its text is not repeated: libpq's own complaint may quote the password."""
    return UsageError(
        "the source's dsn is not a Postgres connection string",
        hint="write postgresql://USER:PASSWORD@HOST:PORT/DATABASE (percent-encode special characters), "
        "or libpq's host=… port=… dbname=… user=… password=…",
    )


def scrub(text: str, secret: str | None) -> str:
    return text.replace(secret, "***") if secret else text


def _privilege_hint(text: str) -> str:
    table = re.search(r"permission denied for (?:table|view|relation) (\S+)", text)
    if table:
        return (
            f"GRANT SELECT ON {table.group(1)} TO the source's user (first loads and verify read the table)"
        )
    schema = re.search(r"permission denied for schema (\S+)", text)
    if schema:
        return f"GRANT USAGE ON SCHEMA {schema.group(1)} TO the source's user"
    function = re.search(r"permission denied for function (\S+)", text)
    if function:
        return (
            f"GRANT EXECUTE ON FUNCTION {function.group(1)} TO the source's user (everybody may by default)"
        )
    if "replication" in text:
        return "as a superuser: ALTER ROLE <user> REPLICATION"
    if "must be owner" in text:
        return "a publication takes its user's own tables only: run init as their owner, or GRANT the owner's role"
    if "permission denied for database" in text:
        return "GRANT CREATE ON DATABASE <database> TO the source's user (it makes the publication)"
    return "give the source's user the privilege, or run init as a user who has it"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    kept = [
        line
        for line in lines
        if not line.startswith(("DETAIL", "HINT", "LINE", "Is the server", "^", "CONTEXT"))
    ]
    line = (kept or lines or ["no reason was given"])[0]
    return re.sub(
        r"^(connection failed: )?(connection to server .*? failed: )?((FATAL|ERROR|PANIC):\s+)?", "", line
    )
