"""From a ``.sql`` file to a projection, or to everything that is wrong with the file. Starts no Spark.

Spark reads the text again and decides. Refused here are several statements, tables that are no inputs, and inputs that
the query does not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError, TokenError

from tailrace.projections.definition.findings import DefinitionFinding, did_you_mean
from tailrace.projections.definition.model import NOW, Input, NoStage, Projection
from tailrace.projections.definition.source import relative_path
from tailrace.projections.definition.sql.header import Dialect, Header, HeaderReader
from tailrace.projections.definition.sql.postgres.query import PostgresQuery
from tailrace.projections.definition.sql.postgres.translate import parse
from tailrace.projections.definition.sql.query_lineage import QueryLineage, with_affects
from tailrace.projections.definition.sql.stages.choose import QueryStages
from tailrace.projections.definition.sql.statements import statements
from tailrace.projections.definition.sql.unfollowed import QueryText
from tailrace.projections.definition.sql_query import SqlQuery, TableReference
from tailrace.projections.definition.validate import mistakes_of

_UNENDED = re.compile(r"Missing (.+) from \d+:(\d+)", re.S)
_CLAUSES = {
    "join": "join", "group": "groupBy", "over": "over", "limit": "limit", "offset": "offset", "union": "union",
    "distinct": "distinct", "except": "subtract", "minus": "subtract", "intersect": "intersect",
    "tablesample": "sample",
}  # fmt: skip
"""What DataFrames call a clause: findings about plans use these names."""


@dataclass(frozen=True, slots=True)
class LoadedQuery:
    """The projection of a file; None when it is not known what it should be. ``findings`` are what is wrong with the
    file."""

    file: str
    name: str
    projection: Projection | None
    findings: tuple[DefinitionFinding, ...]


def load_sql(path: Path) -> LoadedQuery:
    """Read one file. Raises OSError when it cannot be read."""
    text = path.read_text(encoding="utf-8")
    file = relative_path(str(path))
    reader = HeaderReader(file, path.stem)
    header, body = reader.read(text)
    findings = reader.findings
    parsed = _Body(file, body, findings, header.dialect if header is not None else "postgres")
    query = parsed.query()
    if header is None:
        return LoadedQuery(file, path.stem, None, tuple(findings))
    if header.sink is None or query is None:
        return LoadedQuery(file, header.name, None, tuple(findings))
    defined = _projection(header, query, parsed)
    findings += mistakes_of(with_affects(defined, {name: {} for name in header.derived}))
    if not findings:
        tree, zone = (parsed.tree, header.time_zone) if parsed.tree is not None else (query, None)
        lineage = QueryLineage(tree, zone, query, QueryText(text, header.lines), header.derived)
        stages = _stages(file, header, parsed)
        defined = lineage.followed(replace(defined, names=lineage, stages=stages))
    return LoadedQuery(file, header.name, defined, tuple(findings))


def _projection(header: Header, query: exp.Query, parsed: _Body) -> Projection:
    """The projection with the lineage of the header; what it does not say is derived from the query."""
    assert header.sink is not None
    arguments = parsed.arguments(query)
    kind = partial(PostgresQuery, time_zone=header.time_zone) if header.dialect == "postgres" else SqlQuery
    function = kind(
        file=parsed.file,
        line=parsed.line,
        text=parsed.text,
        words=tuple(parsed.word(token) for token in parsed.tokens),
        readings=tuple(parsed.readings(query, header.inputs)),
        calls=parsed.calls(),
        inputs=header.places,
        arguments=arguments,
        header=header.words,
    )
    parsed.find_unread(function.readings, header)
    return Projection(
        name=header.name,
        key=header.key,
        sink=header.sink,
        inputs=header.inputs,
        function=function,
        version=header.version,
        trust=header.trust,
        tolerance=header.tolerance,
        freshness=header.freshness,
        collation=header.collation,
        wants_now=NOW in arguments,
        module="",
        file=parsed.file,
        line=parsed.line,
    )


def _stages(file: str, header: Header, parsed: _Body) -> QueryStages | None:
    """The partial results of a query in Postgres' SQL."""
    if parsed.tree is None:
        return None

    def make(text: str, key: tuple[str, ...], inputs: Mapping[str, Input]) -> Projection:
        body = _Body(file, text, [], "postgres")
        query = body.query()
        if query is None:
            raise NoStage("its text cannot be written again")
        places = {name: header.places.get(name, "1:1") for name in inputs}
        derived = tuple(name for name in header.derived if name in inputs)
        own = replace(header, key=key, inputs=inputs, derived=derived, places=places)
        return _projection(own, query, body)

    return QueryStages(parsed.tree, header.time_zone, header.derived, make)


class _Body:
    """The text after the header. Lines and columns are the file's."""

    def __init__(self, file: str, text: str, findings: list[DefinitionFinding], dialect: Dialect) -> None:
        self.file, self.text, self._findings, self._dialect = file, text, findings, dialect
        self.tokens: list[Token] = []
        self.line, self.begin = 1, "1:1"
        self.tree: exp.Expr | None = None  # the one that is translated; in Spark's SQL none is

    def query(self) -> exp.Query | None:
        """The one SELECT; None, with a finding, when it is something else."""
        try:
            self.tokens = sqlglot.tokenize(self.text, read=self._dialect)
            if self.tokens:
                self.line, self.begin = self.tokens[0].line, self._place(self.tokens[0].start)
            parsed = statements(self.text, self._dialect)
            if len(parsed) == 1 and self._dialect == "postgres":
                self.tree = parse(self.text)
        except ParseError as error:
            for each in error.errors:
                self._find(f"{_problem_text(each)} at {each['highlight']!r}", _start(each))
            return None
        except TokenError as error:
            self._find(*self._tokenizer_error(str(error.__cause__ or error)))
            return None
        except RecursionError:
            self._find("it is nested too deeply", self.begin)
            return None
        if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
            one = f"it is {parsed[0].key.upper()}, not SELECT" if len(parsed) == 1 else ""
            self._find(one or f"it holds {len(parsed)} statements, not one", self.begin)
            return None
        return parsed[0]

    def _tokenizer_error(self, words: str) -> tuple[str, str]:
        """The tokenizer's message and place: that of the first character which it could not read."""
        match = _UNENDED.fullmatch(words)
        if match is None:
            return "it cannot be cut into words", self.begin
        return f"{match[1]} is missing for what begins here", self._place(int(match[2]))

    def _place(self, offset: int) -> str:
        """``line:column`` of a character."""
        return f"{self.text.count(chr(10), 0, offset) + 1}:{offset - self.text.rfind(chr(10), 0, offset)}"

    def _find(self, what: str, place: str, hint: str = "") -> None:
        whose = "Postgres'" if self._dialect == "postgres" else "Spark's"
        hint = hint or f"the body is one SELECT over the inputs' names, in {whose} SQL"
        self._findings.append(DefinitionFinding("fail", what, hint, f"{self.file}:{place}"))

    def word(self, token: Token) -> str:
        """A token as it is written."""
        return self.text[token.start : token.end + 1]

    def calls(self) -> dict[str, tuple[str, ...]]:
        """The places (``line:column``) of functions and clauses."""
        found: dict[str, list[str]] = {}
        for token, following in zip(self.tokens, [*self.tokens[1:], None], strict=True):
            word = self.word(token).lower()
            is_call = following is not None and following.token_type is TokenType.L_PAREN
            name = _CLAUSES.get(word) or (word if is_call and word.isidentifier() else None)
            if name is not None:
                found.setdefault(name, []).append(self._place(token.start))
        return {name: tuple(places) for name, places in found.items()}

    def arguments(self, query: exp.Query) -> tuple[str, ...]:
        """The parameters of the query. ``:now`` is the only allowed one."""
        names = {str(each.this or "?") for each in query.find_all(exp.Placeholder, exp.Parameter)}
        for name in sorted(names - {NOW}):
            used = (
                colon
                for colon, word in zip(self.tokens, self.tokens[1:], strict=False)
                if self.word(colon) == ":" and self.word(word) == name and word.start == colon.end + 1
            )
            place = next((self._place(colon.start) for colon in used), self.begin)
            self._find(f"there is no parameter :{name}", place, "the only one is :now, the position's time")
        return (NOW,) if NOW in names else ()

    def readings(self, query: exp.Query, inputs: Iterable[str]) -> Iterator[TableReference]:
        """Every place that reads an input, in order. Tables that are no inputs are findings."""
        names = {name.lower(): name for name in inputs}
        own = {each.alias.lower(): each.args["alias"].this for each in query.find_all(exp.CTE)}
        for hidden in sorted(own.keys() & names):
            place = self._place(own[hidden].meta["start"])
            self._find(f"WITH {hidden} hides the input of that name", place, "give it another name")
        tables = [each for each in query.find_all(exp.Table) if isinstance(each.this, exp.Identifier)]
        for table in sorted(tables, key=lambda each: int(each.this.meta["start"])):
            where: Mapping[str, Any] = table.this.meta
            name = table.name.lower()
            if table.db or name not in names.keys() | own.keys():
                written = ".".join(part.name for part in table.parts)
                known = f"its inputs are {', '.join(names.values()) or 'none'}"
                first = table.parts[0].meta
                self._find(
                    f"it reads {written}, which is no input",
                    self._place(first["start"]),
                    did_you_mean(name, names) or known,
                )
            elif name in names and name not in own:
                alias = "" if table.alias else names[name]
                yield TableReference(where["start"], where["end"] + 1, names[name], alias)

    def find_unread(self, readings: Sequence[TableReference], header: Header) -> None:
        """Inputs that the query does not name."""
        read = {each.input for each in readings}
        for name in header.inputs:
            if name not in read:
                self._find(f"the query does not read the input {name!r}", header.places[name], "leave it out")


def _problem_text(problem: Mapping[str, Any]) -> str:
    words = re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", str(problem["description"]))
    return words[:1].lower() + words[1:].rstrip(".")


def _start(problem: Mapping[str, Any]) -> str:
    """The parser tells a token by its last column."""
    return f"{problem['line']}:{max(1, problem['col'] - len(problem['highlight']) + 1)}"
