"""Column policies: how capture changes a column's values before anything is written.

``hash`` writes the HMAC-SHA256 (RFC 2104) of the value's text in hex, so that equal values stay equal, in every table;
``truncate:N`` its first N characters; ``drop`` leaves the column out; ``plain`` says that there is no policy. NULL
stays NULL. A protected column is held as text. The policy of a version is part of its schema, with a fingerprint of
the hash key, so that values of two policies never mix unnoticed: after a change the topic is read again.

Silence never lifts a policy. A column keeps the policy it had, also under another name and in a table of another name,
until the configuration says something else of every name that it has had (``tailrace.cdc.policy.history``). Of several
policies the strictest counts.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.cdc.policy.history import UNKNOWN, History, Name, Partition
from tailrace.cdc.policy.patterns import NamePattern, Spelling, parse_pattern
from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.schema import Column, TopicSchema
from tailrace.eventstore.settings import SourceSettings

DROP, HASH, PLAIN, TRUNCATE = "drop", "hash", "plain", "truncate"
_BLOCK = 64  # of SHA-256, bytes
_INNER, _OUTER = 0x36, 0x5C  # RFC 2104
_FINGERPRINT = b"tailrace column policy"

Label = tuple[str, str]
Hasher = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one source. ``rules`` are in the order of the configuration; a name counts before a pattern."""

    rules: tuple[tuple[str, NamePattern, str], ...] = ()
    key: bytes | None = field(default=None, repr=False)
    applied: bool = False
    """The values are protected already (``tailrace.cdc.columnar.protect``); only what the catalog says is still to be
    protected."""
    history: History = field(default_factory=History)
    inherited: Mapping[tuple[int, str], frozenset[Name]] = field(default_factory=dict)
    """By oid and column name of a partitioned table: the protected names of its partitions' columns, which count as
    names of its own column: rows of a partition come as its rows."""

    @classmethod
    def of(cls, settings: SourceSettings, spelling: Spelling = str) -> Policies:
        """``spelling``: of schemas and tables, where they have other names than in the database. Raises UsageError on a
        name that is no column's."""
        named = [
            (text, parse_pattern(text, 3, spelling), policy) for text, policy in settings.columns.items()
        ]
        secret = settings.hash_key.get_secret_value().encode() if settings.hash_key else None
        fingerprint = _hasher(secret)(_FINGERPRINT)[:8] if secret else ""
        rules = [
            (text, pattern, f"{HASH}:{fingerprint}" if policy == HASH else policy)
            for text, pattern, policy in sorted(named, key=lambda rule: not rule[1].exact)
        ]
        return cls(tuple(rules), secret)

    @property
    def protect_something(self) -> bool:
        """Whether any column has, or may get, a policy."""
        return bool(self.history.names) or any(policy != PLAIN for _, _, policy in self.rules)

    def schema(self, table: Label, whole: TopicSchema, previous: TopicSchema | None = None) -> TopicSchema:
        """A table's schema under the policies. ``whole`` has all columns of the table; ``previous`` is the topic's
        version before it. Raises OperatorError when the key would be lost."""
        columns = [
            self._with_policy(column, self._policy(table, whole.relid, column, previous))
            for column in whole.columns
        ]
        written = tuple(column for column in columns if not is_left_out(column))
        if not whole.bag:
            self._require_key(table, columns)
        left_out = tuple(column for column in columns if is_left_out(column))
        return replace(whole, columns=written, left_out=left_out)

    def names_of(self, table: Label, relid: int, column: Column) -> list[tuple[str, str, str]]:
        """All names under which a column is, or was, protected: that which it has now comes first."""
        entry = self.history.columns.get((relid, column.id))
        names = [column.name, *sorted({name for _, _, name in entry.names} if entry else ())]
        labels = self.history.labels(table, relid)
        found = [(*label, name) for name in dict.fromkeys(names) for label in labels]
        others = self.inherited.get((relid, column.name), frozenset()) | (
            entry.names if entry else frozenset()
        )
        return list(dict.fromkeys([*found, *sorted(others)]))

    def policy_of_name(self, table: Label, relid: int, name: str) -> str:
        """The policy of a column of which the name alone is known."""
        return self._policy(table, relid, Column(0, name, 0), None)

    def _policy(self, table: Label, relid: int, column: Column, previous: TopicSchema | None) -> str:
        """What the configuration says of any name that the column has had; where it is silent of one, also the
        policies that the column, and others of its names, had last."""
        names = self.names_of(table, relid, column)
        said = [self.policy_of(name) for name in names]
        found = [policy for policy in said if policy]
        if None in said:
            known = previous.sent if previous else ()
            same = previous is not None and previous.relid in (0, relid)
            entry = self.history.columns.get((relid, column.id))
            found += [entry.policy] if entry else []
            found += [self.history.names.get(name, "") for name in names]
            found += [each.policy for each in known if each.name == column.name]
            found += [each.policy for each in known if same and each.id == column.id]
            found.append(column.policy)
        strictest = min(
            (policy for policy in found if policy and policy != UNKNOWN), key=_leniency, default=""
        )
        return UNKNOWN if column.policy == UNKNOWN else strictest

    def changed_columns(self, table: Label, latest: TopicSchema) -> list[str]:
        """Where the configuration differs from a topic's latest version, a sentence for each column."""
        now = {column.id: column for column in self.schema(table, latest.whole, latest).sent}
        return [
            f"{column.name}: {describe(column.policy)} until now, {describe(now[column.id].policy)} from here on"
            for column in latest.sent
            if now[column.id].policy != column.policy
        ]

    def retained_columns(self, table: Label, latest: TopicSchema) -> list[str]:
        """Columns that keep a policy though the configuration does not name it (any more)."""
        return [
            column.name
            for column in latest.sent
            if column.policy
            and any(self.policy_of(name) is None for name in self.names_of(table, latest.relid, column))
        ]

    def unmatched_rules(self, columns: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
        """Rules that match none of the (schema, table, column), each with the name that comes closest or ""."""
        known = list(columns)
        found = []
        for text, pattern, _ in self.rules:
            if not any(pattern.match(*names) for names in known):
                close = difflib.get_close_matches(text, [".".join(names) for names in known], 1)
                found.append((text, close[0] if close else ""))
        return found

    def misnamed_rules(self, table: Label, columns: Iterable[str]) -> list[tuple[str, str]]:
        """Rules that name a table, and one column that it has not: each with the name that comes closest or ""."""
        mine = tuple(rule for rule in self.rules if rule[1].exact and rule[1].is_of(*table))
        had = [name for name in self.history.names if name[:2] == table]
        return replace(self, rules=mine).unmatched_rules([*((*table, name) for name in columns), *had])

    def texts(self, columns: Sequence[Column], texts: Sequence[pa.Array]) -> list[pa.Array]:
        """Values in the form in which they are written: one string or binary array per column. Raises OperatorError
        without the key that hashes them."""
        if self.applied:
            return list(texts)
        return [
            self._protect(column, cells) if column.policy else cells
            for column, cells in zip(columns, texts, strict=True)
        ]

    def cell(self, column: Column, text: bytes) -> bytes:
        """One value in the form in which it is written. Raises OperatorError like ``texts``."""
        kind, _, argument = column.policy.partition(":")
        if kind == TRUNCATE:
            return text.decode(errors="replace")[: int(argument)].encode()
        return self._hasher_of(column)(text).encode()

    def as_applied(self) -> Policies:
        """The same policies for values that are protected already."""
        return replace(self, applied=True)

    def remembering(self, history: History) -> Policies:
        return replace(self, history=history)

    def covering(self, root: int, partitions: Iterable[Partition]) -> Policies:
        """The same policies, given that these tables are partitions of the one with the oid ``root``."""
        if not (self.rules or self.history.columns):
            return self
        found = dict(self.inherited)
        for part in partitions:
            for number, name in part.columns:
                names = self.names_of(part.label, part.relid, Column(number, name, 0))
                if protected := {
                    each for each in names if self.policy_of(each) or each in self.history.names
                }:
                    found[root, name] = found.get((root, name), frozenset()) | protected
        return replace(self, inherited=found)

    def policy_of(self, names: tuple[str, str, str]) -> str | None:
        """What the configuration says of a column: its policy, "" for plain, None for nothing."""
        found = next((policy for _, pattern, policy in self.rules if pattern.match(*names)), None)
        return "" if found == PLAIN else found

    def _with_policy(self, column: Column, policy: str) -> Column:
        """The column with its fill, a value like others, under the policy."""
        if column.policy == policy:
            return column
        fill = None if column.policy else column.fill  # its plain value is not known any more
        changed = replace(column, policy=policy, fill=None)
        if fill is None or not policy or is_left_out(changed):
            return replace(changed, fill=None if policy else fill)
        return replace(changed, fill=self._protect(changed, pa.array([fill]))[0].as_py())

    def _require_key(self, table: Label, columns: Sequence[Column]) -> None:
        for column in columns:
            if column.key and column.policy and not column.policy.startswith(HASH):
                raise OperatorError(
                    f"column {'.'.join((*table, column.name))} is part of the key, so it cannot have the policy"
                    f" {column.policy!r}: different rows would become one",
                    hint='write "hash" (or "plain") for it in [sources.NAME.columns]',
                )

    def _protect(self, column: Column, cells: pa.Array) -> pa.Array:
        kind, _, argument = column.policy.partition(":")
        if kind == TRUNCATE:
            return pc.utf8_slice_codeunits(_as_text(cells), 0, int(argument))
        hasher = self._hasher_of(column)
        hashed = [
            None if cell is None else hasher(cell) for cell in cells.cast(pa.large_binary()).to_pylist()
        ]
        return pa.array(hashed, pa.string())

    def _hasher_of(self, column: Column) -> Hasher:
        kind, _, argument = column.policy.partition(":")
        if kind != HASH:  # the schema of a left out column has no cells
            raise ValueError(f"no values can be written under policy {column.policy!r}")
        hasher = _hasher(self.key) if self.key else None
        if hasher is None or hasher(_FINGERPRINT)[:8] != argument:
            raise OperatorError(
                f"column {column.name} was hashed with the key {argument}, "
                + ("and the source has another hash_key" if hasher else "and the source has no hash_key"),
                hint="give the source the hash_key that it had; capture with another one reads the table again",
            )
        return hasher


def is_left_out(column: Column) -> bool:
    return column.policy.partition(":")[0] == DROP


def _leniency(policy: str) -> tuple[int, int]:
    kind, _, argument = policy.partition(":")
    return (2, int(argument)) if kind == TRUNCATE else ((0 if kind == DROP else 1), 0)


def describe(policy: str) -> str:
    """A policy in words."""
    kind, _, argument = policy.partition(":")
    match kind:
        case "":
            return "in plain text"
        case "drop":
            return "left out" + (", because it may be a protected column" if policy == UNKNOWN else "")
        case "hash":
            return f"hashed with key {argument}"
        case _:
            return f"cut to {argument} characters"


def _hasher(key: bytes) -> Hasher:
    """HMAC-SHA256 in hex, from two prepared states: five times as fast as one call of ``hmac`` for each value."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (_INNER, _OUTER))

    def digest(text: bytes) -> str:
        first, second = inner.copy(), outer.copy()
        first.update(text)
        second.update(first.digest())
        return second.hexdigest()

    return digest


def _as_text(cells: pa.Array) -> pa.Array:
    """Cells as strings. What is not UTF-8 (a server in SQL_ASCII) gets replacement characters."""
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        return cells
    kind = pa.large_string() if pa.types.is_large_binary(cells.type) else pa.string()
    try:
        return cells.cast(kind)
    except pa.ArrowInvalid:
        return pa.array(
            [None if cell is None else cell.decode(errors="replace") for cell in cells.to_pylist()], kind
        )
