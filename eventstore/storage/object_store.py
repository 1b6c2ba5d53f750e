"""Write-once files as objects of an S3-compatible store, through Arrow's file system.

A PUT is atomic and durable when it is answered; a large file is a multipart upload, which shows nothing before its last
request. What is written is buffered on this machine first: Arrow completes an upload whatever happens to its writer,
so an upload begins only when the file is whole.

Arrow cannot send the headers of server-side encryption: when it is asked for, another client uploads.
"""

from __future__ import annotations

import io
import mmap
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, ClassVar, cast

import pyarrow as pa
from pyarrow import fs

from tailrace.eventstore.errors import IntegrityError, OperatorError
from tailrace.eventstore.storage import s3_errors
from tailrace.eventstore.storage.base import Storage, StoredFile, check_name, missing_error, taken_error
from tailrace.eventstore.storage.encryption import ATTEMPTS, CONNECT_SECONDS, EncryptedUploads, Encryption

PROBES = "probe"  # the folder of what ``prepare`` writes
_MEMORY_BYTES = 8 << 20  # larger files are on the disk while they are written or read whole
_COPY_BYTES = 4 << 20
_PROBE = b"written, read and removed by tailrace to see whether it may"


@dataclass(frozen=True, slots=True)
class ObjectStorage(Storage):
    """Objects of ``bucket`` whose keys begin with ``prefix`` (no slashes around; may be empty). ``endpoint`` and
    ``region``: None = those of AWS and of the environment; ``encryption``: None = the bucket's default. Credentials are
    the environment's, in every process."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    encryption: Encryption | None = None
    remote: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return "s3://" + "/".join(filter(None, (self.bucket, self.prefix)))

    def place(self, path: str) -> str:
        return f"{self.label}/{path}"

    def prepare(self) -> None:
        path = f"{PROBES}/{uuid.uuid4().hex}"
        self.write(path, _PROBE)
        try:
            if self.open(path).to_pybytes() != _PROBE:
                raise OperatorError(
                    f"{self.place(path)} is not what was written there",
                    hint="the object store does not keep what it is given; use another",
                )
            list(self.files(PROBES))
        finally:
            self.delete(path)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with _temporary_file_errors(), tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
            yield cast(BinaryIO, file)
            file.seek(0)
            self._upload(path, cast(BinaryIO, file))

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        self._upload(path, io.BytesIO(data))

    def _upload(self, path: str, content: BinaryIO) -> None:
        with self._translate_errors(path):
            if self._exists(path):
                raise taken_error(self.place(path))
            if self.encryption is not None:
                uploads = EncryptedUploads(self.encryption, self.endpoint, self.region)
                key = self._key(path).removeprefix(f"{self.bucket}/")
                uploads.put(self.bucket, key, content, self.place(path))
                return
            with self._files().open_output_stream(self._key(path)) as out:
                while piece := content.read(_COPY_BYTES):
                    out.write(piece)

    def open(self, path: str) -> pa.Buffer:
        with self._translate_errors(path), self._files().open_input_file(self._key(path)) as file:
            size = file.size()
            if size <= _MEMORY_BYTES:
                return file.read_buffer()
            with tempfile.TemporaryFile() as held:
                while piece := file.read(_COPY_BYTES):
                    with _temporary_file_errors():
                        held.write(piece)
                with _temporary_file_errors():
                    held.flush()
                return pa.py_buffer(mmap.mmap(held.fileno(), size, prot=mmap.PROT_READ))

    @contextmanager
    def ranges(self, path: str) -> Iterator[pa.NativeFile]:
        with self._translate_errors(path), self._files().open_input_file(self._key(path)) as file:
            yield file

    def exists(self, path: str) -> bool:
        with self._translate_errors(path):
            return self._exists(path)

    def _exists(self, path: str) -> bool:
        return bool(self._files().get_file_info(self._key(path)).type == fs.FileType.File)

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        top = self._key(prefix) if prefix else "/".join(filter(None, (self.bucket, self.prefix)))
        with self._translate_errors(prefix):
            # A bucket that is not there looks like an empty folder, unless one that is not there is an error.
            found = self._files().get_file_info(fs.FileSelector(top, recursive=True, allow_not_found=True))
        start = len(self._key("x")) - 1
        for info in found:
            if info.type == fs.FileType.File:
                yield StoredFile(info.path[start:], info.size, info.mtime)

    def delete(self, path: str) -> bool:
        with self._translate_errors(path):
            try:
                self._files().delete_file(self._key(path))
            except FileNotFoundError:
                return False
        return True

    def _key(self, path: str) -> str:
        return "/".join(filter(None, (self.bucket, self.prefix, check_name(path))))

    def _files(self) -> fs.S3FileSystem:
        return _file_system(self.endpoint, self.region)

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        place = self.place(path) if path else self.label
        try:
            yield
        except FileNotFoundError:
            raise missing_error(place) from None
        except OSError as error:
            text = str(error)
            if "page integrity" in text:
                raise IntegrityError(
                    f"{place} is damaged: {text}",
                    hint="restore it from a backup; the log is never read past damage",
                ) from None
            raise s3_errors.translate(text, place) from None


@contextmanager
def _temporary_file_errors() -> Iterator[None]:
    """Around the use of this machine's temporary files."""
    try:
        yield
    except OSError as error:
        raise OperatorError(
            f"files for the object store cannot be buffered in {tempfile.gettempdir()}: {error.strerror or error}",
            hint="make room there, or name another folder with TMPDIR; capture resumes where it stopped",
        ) from error


@lru_cache(maxsize=8)
def _file_system(endpoint: str | None, region: str | None) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        region=region,
        connect_timeout=CONNECT_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # so a file that fits into one part is one PUT
    )
