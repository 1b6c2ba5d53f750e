"""What the names of one SELECT mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.projections.definition.findings import did_you_mean
from tailrace.projections.definition.sql.postgres.refusal import Refused
from tailrace.projections.definition.sql.postgres.types.types import PgType
from tailrace.projections.definition.sql.postgres.types.values import Value, name_text, of_column

Columns = tuple[tuple[str, PgType], ...]


def folded(identifier: exp.Expr) -> str:
    """A name as Postgres reads it: in lower case unless it is quoted."""
    return identifier.name if identifier.args.get("quoted") else identifier.name.lower()


@dataclass(frozen=True, slots=True)
class Source:
    """A table of FROM under its name there."""

    name: str
    columns: Columns

    def column(self, name: str) -> Value | None:
        found = [type_ for each, type_ in self.columns if each == name]
        return of_column(f"{name_text(self.name)}.{name_text(name)}", found[0]) if found else None


@dataclass(slots=True)
class Scope:
    """``merged`` are the columns of USING, of which there is one for both tables; ``outer`` is the query around."""

    sources: list[Source] = field(default_factory=list)
    merged: dict[str, PgType] = field(default_factory=dict)
    outer: Scope | None = None

    def column(self, node: exp.Column) -> Value:
        """The column that a name means here, or in a query around. Raises Refused."""
        parts = list(node.parts)
        names = [folded(part) for part in parts]
        scope: Scope | None = self
        while scope is not None:
            found = scope._own(names, node)
            if found is not None:
                return found
            scope = scope.outer
        known = list(dict.fromkeys(name for source in self.sources for name, _ in source.columns))
        if len(names) > 1 and all(source.name != names[0] for source in self.sources):
            known = [f"{source.name}.{name}" for source in self.sources for name, _ in source.columns]
        written = ".".join(part.name for part in parts)
        hint = did_you_mean(".".join(names), known) or did_you_mean(names[-1], known)
        raise Refused(
            f"there is no column {written}", hint or f"there are {', '.join(known) or 'none'}", node
        )

    def _own(self, names: Sequence[str], node: exp.Expr) -> Value | None:
        if len(names) == 1 and names[0] in self.merged:
            return of_column(name_text(names[0]), self.merged[names[0]])
        for source in self.sources if len(names) > 1 else ():
            if source.name == names[0] and (value := source.column(names[1])) is not None:
                return fields_of(value, names[2:], node)
        found = [value for source in self.sources if (value := source.column(names[0])) is not None]
        if len(found) > 1:
            tables = " or ".join(f"{each.name}.{names[0]}" for each in self.sources if each.column(names[0]))
            raise Refused(f"the column {names[0]} may be one of several tables", f"write {tables}", node)
        return fields_of(found[0], names[1:], node) if found else None

    def all_columns(self) -> Iterator[tuple[str, Value]]:
        """Those of ``*``."""
        for name, type_ in self.merged.items():
            yield name, Value(name_text(name), type_)
        for source in self.sources:
            for name, type_ in source.columns:
                if name not in self.merged:
                    yield name, of_column(f"{name_text(source.name)}.{name_text(name)}", type_)


def fields_of(value: Value, names: Sequence[str], node: exp.Expr) -> Value | None:
    """A field of a composite; None where it has none of that name."""
    for name in names:
        types = dict(value.type.fields)
        if name not in types:
            return None
        value = Value(f"{value.sql}.{name_text(name)}", types[name])
    return value
