"""A schema registry's API, as far as it is needed: the schema of a number. What it answers is bounded, and checked."""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from tailrace.eventstore.errors import OperatorError, TransientError
from tailrace.eventstore.settings import RegistrySettings

ANSWER_BYTES_MAX = 4 << 20
"""Of an answer: a schema of the longest length, with its escapes."""
_SECONDS = 10.0
_BODY_SECONDS = 30.0  # for a whole answer that comes in drops
_STEP = 1 << 16
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_URL_HINT = (
    "url in the source's registry is the address of Confluent's API, without what follows it: of Apicurio"
    " http://HOST:PORT/apis/ccompat/v7"
)


@dataclass(frozen=True, slots=True)
class SchemaAnswer:
    """``text``: an Avro schema; None: there is none that can be used, and ``refused`` says why."""

    text: str | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """``seconds``: how long the registry may be silent."""

    settings: RegistrySettings
    seconds: float = _SECONDS

    def schema(self, number: int) -> SchemaAnswer:
        """Raises TransientError (out of reach, busy) and OperatorError (it lets nobody in, or is no registry)."""
        status, body = self._get(f"/schemas/ids/{number}")
        if status == 404:
            return SchemaAnswer(None, f"the schema registry has no schema {number}")
        if len(body) > ANSWER_BYTES_MAX:
            return SchemaAnswer(None, f"schema {number} is longer than {ANSWER_BYTES_MAX:,} bytes")
        answer = _document(body)
        kind, text = answer.get("schemaType", "AVRO"), answer.get("schema")
        if kind != "AVRO":
            return SchemaAnswer(
                None, f"schema {number} is of the type {str(kind)[:20]}, and only AVRO is read"
            )
        if answer.get("references"):
            return SchemaAnswer(None, f"schema {number} has references to others, which are not followed")
        if not isinstance(text, str):
            raise self._no_registry("an answer without a schema")
        return SchemaAnswer(text)

    def require_answer(self) -> None:
        """Raises as ``schema`` unless the registry answers, and reads Avro."""
        status, body = self._get("/schemas/types")
        try:
            types = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            types = None
        if not isinstance(types, list) or "AVRO" not in types:
            raise self._no_registry("an answer that does not name Avro")

    def _get(self, path: str) -> tuple[int, bytes]:
        """The status: 200, or 404 where the registry itself says so; and the body, cut off behind the limit."""
        url = self.settings.url
        try:
            status, body = self._ask(path)
        except ssl.SSLCertVerificationError as error:
            raise OperatorError(
                f"the schema registry {url} shows a certificate that is not right: {error.verify_message}",
                hint="set ca_file in the source's registry to the authority it is from, and name the host as its"
                " certificate does",
            ) from error
        except (OSError, HTTPException) as error:
            raise TransientError(
                f"the schema registry {url} is out of reach: {_words(error)}",
                hint="start it, or correct url in the source's registry; records wait until it answers",
            ) from error
        if status == 200 or (status == 404 and _says_so(body)):
            return status, body
        if status in (401, 403):
            raise OperatorError(
                f"the schema registry {url} lets us not in ({status})",
                hint="username and password in the source's registry name a user who may read schemas",
            )
        if status == 429 or status >= 500:
            raise TransientError(
                f"the schema registry {url} cannot answer now ({status})",
                hint="see its log; records wait until it answers",
            )
        raise self._no_registry(f"status {status} for {path}")

    def _ask(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self.settings.url)
        host, port = parts.hostname or "", parts.port
        connection: HTTPConnection
        if parts.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=self.seconds, context=self._context())
        else:
            connection = HTTPConnection(host, port, timeout=self.seconds)
        try:
            connection.request("GET", parts.path + path, headers=self._headers())
            response = connection.getresponse()
            return response.status, _body(response)
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": _ACCEPT, "User-Agent": "tailrace"}
        if self.settings.username is not None and self.settings.password is not None:
            pair = f"{self.settings.username}:{self.settings.password.get_secret_value()}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return headers

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.settings.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise OperatorError(
                f"ca_file cannot be used for the schema registry: {error.strerror or error}",
                hint="it is a PEM file",
            ) from error

    def _no_registry(self, what: str) -> OperatorError:
        return OperatorError(f"{self.settings.url} is no schema registry: {what}", hint=_URL_HINT)


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """Which registry is used, and what keeps it from answering ("": it answers)."""

    url: str
    problem: str = ""
    hint: str = ""

    @property
    def text(self) -> str:
        return f"schema registry {self.url}: answers" if not self.problem else self.problem


def ask_registry(settings: RegistrySettings | None, seconds: float = _SECONDS) -> RegistryAnswer | None:
    """None where records are JSON."""
    if settings is None:
        return None
    try:
        RegistryClient(settings, seconds).require_answer()
    except (OperatorError, TransientError) as error:
        return RegistryAnswer(settings.url, error.message, error.hint)
    return RegistryAnswer(settings.url)


def _body(response: HTTPResponse) -> bytes:
    """As much as is looked at. Raises TimeoutError."""
    end, parts, size = time.monotonic() + _BODY_SECONDS, list[bytes](), 0
    while size <= ANSWER_BYTES_MAX and (part := response.read1(_STEP)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > end:
            raise TimeoutError(f"no whole answer within {_BODY_SECONDS:.0f} s")
    return b"".join(parts)


def _document(body: bytes) -> dict[str, Any]:
    """An object; an empty one for what is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _says_so(body: bytes) -> bool:
    """Whether it is a registry that says that it does not have something, and not a server that knows no such path."""
    return isinstance(_document(body).get("error_code"), int)


def _words(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
