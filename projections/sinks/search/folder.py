"""The folder of a projection's tantivy indexes: one for each generation, and the file CURRENT that names the live one.

``<path>/<store>/<projection>/g42/`` holds an index and ``tailrace.json`` (what a reader must know). Each row is one
document: ``_key`` (its key text, one term), ``_row`` (the whole row as JSON, stored only), and the searchable fields.
The fence is a document too, so that it changes in the commit that changes the rows.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from functools import cache
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import tantivy

from tailrace.eventstore import disclosure
from tailrace.eventstore.errors import IntegrityError, TransientError
from tailrace.eventstore.model.position import Fence
from tailrace.projections.sinks.contract import Target
from tailrace.projections.sinks.folder import GenerationsFolder, replace_file
from tailrace.projections.sinks.rows import schema_from_text, schema_to_text
from tailrace.projections.sinks.specs import FieldKind

KEY, ROW, KIND = "_key", "_row", "_kind"
IS_ROW, IS_FENCE = "row", "fence"
TERM_BYTES = 65_530  # tantivy drops longer terms without a word (MAX_TOKEN_LEN)
_FOOTER_END = struct.Struct("<II")  # length of the footer, magic number
_MAGIC = 1337
_META, _CURRENT = "tailrace.json", "CURRENT"
_MANAGED = ".managed.json"  # names of files that tantivy removes once no commit needs them
# What the disk said, in tantivy's words: no room, no right, read-only.
_DISK_TROUBLE = re.compile(
    rf"(?:os error |Os {{ code: )({'|'.join(str(each) for each in (ENOSPC, EDQUOT, EACCES, EPERM, EROFS))})\b"
)


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What a reader must know about a generation. ``long_words``: words of 40 bytes and more are indexed, which older
    generations lack."""

    key: tuple[str, ...]
    schema: pa.Schema
    fields: Mapping[str, FieldKind]
    long_words: bool = field(default=True, compare=False)

    def to_text(self) -> str:
        return json.dumps(
            {
                "key": self.key,
                "schema": schema_to_text(self.schema),
                "fields": dict(self.fields),
                "long_words": self.long_words,
            }
        )

    def cut_words(self, index: tantivy.Index) -> None:
        """Have an index, or one that parses queries, cut texts into words as this generation does."""
        if self.long_words:
            index.register_tokenizer("default", _words())

    @classmethod
    def from_text(cls, text: str) -> Self:
        data: dict[str, Any] = json.loads(text)
        schema, long_words = schema_from_text(data["schema"]), data.get("long_words", False)
        return cls(tuple(data["key"]), schema, data["fields"], long_words)


class SearchFolder(GenerationsFolder):
    """Indexes, and which of them is live."""

    @property
    def current(self) -> Path:
        return self.path / _CURRENT

    def meta(self, generation: int) -> IndexMeta | None:
        file = self.generation(generation) / _META
        with self.translate_errors():
            text = file.read_text("utf-8") if file.exists() else None
        try:
            return None if text is None else IndexMeta.from_text(text)
        except (ValueError, LookupError, TypeError, AttributeError, pa.ArrowException):
            raise IntegrityError(
                f"{self.text}: {file} is not what Tailrace wrote",
                hint="rebuild the projection as a new generation",
            ) from None

    def write_meta(self, generation: int, meta: IndexMeta) -> None:
        replace_file(self.generation(generation) / _META, meta.to_text())

    def live(self) -> int | None:
        self.require_inside(self.current)
        with self.translate_errors():
            try:
                text = self.current.read_text("utf-8", errors="replace").strip()
            except FileNotFoundError:
                return None
        if not text.isascii() or not text.isdecimal():
            raise IntegrityError(
                f"{self.text}: {self.current} holds {text[:20]!r}, not a generation's number",
                hint="remove that file; the next tailrace run or verify writes it again",
            )
        return int(text)

    def set_live(self, generation: int) -> None:
        replace_file(self.current, f"{generation}\n")

    def open_index(self, generation: int) -> tantivy.Index | None:
        """The index at its latest commit; None when there is none."""
        folder = self.generation(generation)
        with self.translate_errors():
            if not (folder / "meta.json").exists():
                return None
            self.check_names(folder)
            index = tantivy.Index.open(str(folder))
            if (meta := self.meta(generation)) is not None:
                meta.cut_words(index)
            index.reload()
            return index

    def check_names(self, folder: Path) -> None:
        """tantivy follows links and names out of the folder, and removes files that it is told of. Raises
        IntegrityError."""
        self.require_inside(folder)
        for file in folder.iterdir():
            if file.is_symlink():
                self.require_inside(file)
        try:
            named = json.loads((folder / _MANAGED).read_bytes())
        except FileNotFoundError:
            return
        if not isinstance(named, list) or any("/" in str(name) or name in ("", "..") for name in named):
            raise IntegrityError(
                f"{self.text}: {folder / _MANAGED} names files outside of its folder, which tantivy would remove",
                hint="find out who wrote it, and rebuild the projection as a new generation",
            )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Inside, errors of files and of tantivy (which raises ValueError) say what to do."""
        try:
            with super().translate_errors():
                yield
        except ValueError as error:
            if "LockBusy" in str(error):
                raise TransientError(
                    f"{self.text}: another process writes to this index", hint="let it end, then try again"
                ) from error
            if trouble := _DISK_TROUBLE.search(str(error)):
                raise self.unusable_error(os.strerror(int(trouble[1]))) from error
            if "writer was killed" in str(
                error
            ):  # by an error of a thread of its own, which it does not tell
                raise self.unusable_error(
                    "tantivy stopped writing, as it does when the disk refuses it"
                ) from error
            raise IntegrityError(
                f"{self.text}: tantivy says: {disclosure.hide_text(str(error))}",
                hint="rebuild the projection as a new generation",
            ) from error
        except BaseException as error:
            # Damaged files make tantivy panic, which arrives as an exception that is none of Exception's.
            if type(error).__name__ != "PanicException":
                raise
            raise IntegrityError(
                f"{self.text}: an index is damaged, tantivy stopped: {disclosure.hide_text(str(error))}",
                hint="rebuild the projection as a new generation",
            ) from error

    def check_files(self, generation: int) -> None:
        """Compare the files of the latest commit with the checksums in their footers (tantivy, footer.rs: the footer as
        JSON, its length and a magic number). Raises IntegrityError, naming what is damaged."""
        folder = self.generation(generation)
        with self.translate_errors():
            names = _commit_files(json.loads((folder / "meta.json").read_bytes()))
            files = sorted(file for file in folder.iterdir() if file.name.startswith(names))
            damaged = [file.name for file in files if not _is_whole(file)]
        if damaged:
            raise IntegrityError(
                f"{self.text}: damaged files in {folder}: {', '.join(damaged)}",
                hint="check the disk, then rebuild the projection as a new generation",
            )


def index_schema(fields: Mapping[str, FieldKind], *, own: bool = True) -> tantivy.Schema:
    """The fields of an index. Without our ``own`` fields a parser of queries has the others under the same numbers, and
    cannot search ours."""
    builder = tantivy.SchemaBuilder()
    for name in (KEY, KIND):
        if own:
            builder.add_text_field(name, stored=False, tokenizer_name="raw", index_option="basic")
        else:
            builder.add_bytes_field(name, stored=False, indexed=False)
    builder.add_bytes_field(ROW, stored=True, indexed=False)
    for name, kind in fields.items():
        match kind:
            case "text":
                builder.add_text_field(name, stored=False)
            case "string":
                builder.add_text_field(name, stored=False, tokenizer_name="raw", index_option="basic")
            case "i64":
                builder.add_integer_field(name, indexed=True, fast=True)
            case "f64":
                builder.add_float_field(name, indexed=True, fast=True)
            case "bool":
                builder.add_boolean_field(name, indexed=True, fast=True)
            case "date":
                builder.add_date_field(name, indexed=True, fast=True)
    return builder.build()


@cache
def _words() -> tantivy.TextAnalyzer:
    """tantivy's default tokenizer without its limit of 40 bytes. It has the default's name, so that older versions of
    Tailrace can open the index: they find all but the long words."""
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return words.filter(tantivy.Filter.remove_long(TERM_BYTES + 1)).filter(tantivy.Filter.lowercase()).build()


def read_fence(
    index: tantivy.Index, target: Target, searcher: tantivy.Searcher | None = None
) -> Fence | None:
    """The fence as a searcher sees it (default: one of the latest commit)."""
    searcher = searcher or index.searcher()
    query = tantivy.Query.term_query(index.schema, KIND, IS_FENCE, "basic")
    hits = searcher.search(query, limit=1, count=False).hits
    if not hits:
        return None
    data = stored_row(searcher, hits[0][1])
    log_id, epoch, epoch_hash = (data.get(name) for name in ("log_id", "epoch", "epoch_hash"))
    if not (isinstance(log_id, str) and isinstance(epoch, int) and isinstance(epoch_hash, str)):
        raise ValueError("a fence that Tailrace did not write")
    return Fence(log_id, target.projection, target.generation, epoch, epoch_hash)


def stored_row(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> dict[str, Any]:
    """The row of a document. Raises ValueError for a document that is not ours."""
    row = json.loads(bytes(searcher.doc(address).get_first(ROW) or b"null"))
    if not isinstance(row, dict):
        raise ValueError("a document without a row")
    return row


def _commit_files(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Beginnings of the names of a commit's files. The list of deleted documents has a number: another one may be on
    its way into the next commit."""
    parts = ("fast", "fieldnorm", "idx", "pos", "store", "term")
    names = []
    for segment in meta["segments"]:
        name = segment["segment_id"].replace("-", "")
        names += [f"{name}.{part}" for part in parts]
        if segment.get("deletes"):
            names.append(f"{name}.{segment['deletes']['opstamp']}.del")
    return tuple(names)


def _is_whole(file: Path) -> bool:
    """Whether a file of an index is what its footer says. A missing file was merged into another meanwhile."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return True
    end = len(data) - _FOOTER_END.size
    if end < 0:
        return False
    length, magic = _FOOTER_END.unpack_from(data, end)
    if magic != _MAGIC or length > end:
        return False
    try:
        return bool(zlib.crc32(data[: end - length]) == json.loads(data[end - length : end])["crc"])
    except (ValueError, KeyError, TypeError):
        return False
