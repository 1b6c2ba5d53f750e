"""What an object store's refusal means: Arrow's error text in, an error that says what to do out. Pure.

Arrow gives no codes but texts: ``When ACTION for key 'k' in bucket 'b': AWS Error CODE during Op operation: message``.
The codes are those of the AWS SDK for C++; one it does not know is ``UNKNOWN (HTTP status N)``.
"""

from __future__ import annotations

import re

from tailrace.eventstore.errors import OperatorError, TailraceError, TransientError

_TEXT = re.compile(
    r"AWS Error (?P<code>[A-Z_]+)(?: \(HTTP status (?P<status>\d+)\))? during (?P<operation>\w+) operation: "
    r"(?P<message>.*)",
    re.DOTALL,
)
_REQUEST = re.compile(r"\s*\(?Request ID: [^)]*\)?\s*$")

CREDENTIALS = (
    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), from AWS_PROFILE "
    "in ~/.aws, or from the machine's role; they must allow to read, write, list and delete below that address"
)
_BUCKET = (
    "create the bucket (Tailrace makes none), or correct the address (store.segments, archive) and "
    "store.s3.endpoint"
)
_CLOCK = "this machine's clock and the server's differ by more than it allows: let NTP set both"
_CHECKSUMS = (
    "if the server does not know the checksums that the client appends to uploads, as many S3-compatible ones, set "
    "AWS_REQUEST_CHECKSUM_CALCULATION=WHEN_REQUIRED; if the region is wrong, set store.s3.region"
)
_REGION = "set store.s3.region (or AWS_REGION) to the region of the bucket"
_KEY = (
    "let these credentials use the key (kms:GenerateDataKey, kms:Decrypt), or correct store.s3.kms_key: an id or ARN "
    "of an enabled key in the bucket's region"
)
_LACKS = (
    "the object store cannot do that; if it is the encryption that uploads ask for, unset store.s3.encryption"
)
_REACH = "check store.s3.endpoint (http:// or https://, host and port) and that its server runs; try again"
_SPEAK = "what answers there does not speak S3: correct store.s3.endpoint"

# Codes -> what the operator does.
_OPERATOR = {
    "NO_SUCH_BUCKET": _BUCKET,
    "ACCESS_DENIED": CREDENTIALS,
    "INVALID_ACCESS_KEY_ID": CREDENTIALS,
    "SIGNATURE_DOES_NOT_MATCH": CREDENTIALS,
    "INVALID_SIGNATURE": CREDENTIALS,
    "INVALID_CLIENT_TOKEN_ID": CREDENTIALS,
    "MISSING_AUTHENTICATION_TOKEN": CREDENTIALS,
    "UNRECOGNIZED_CLIENT": CREDENTIALS,
    "CLIENT_SIGNING_FAILURE": CREDENTIALS,
    "REQUEST_TIME_TOO_SKEWED": _CLOCK,
    "REQUEST_EXPIRED": _CLOCK,
    "NOT_IMPLEMENTED": _LACKS,
}
_STATUS = {
    "301": _REGION,
    "307": _REGION,
    "400": _REGION,
    "401": CREDENTIALS,
    "403": CREDENTIALS,
    "404": _BUCKET,
}
_UPLOADS = {"PutObject", "UploadPart", "CompleteMultipartUpload"}
_AGAIN = {"SLOW_DOWN", "THROTTLING", "REQUEST_TIMEOUT", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE"}
# What the unknown ones say of themselves.
_WORDS = {
    "RequestTimeTooSkewed": _CLOCK,
    "AuthorizationHeaderMalformed": _REGION,
    "ExpiredToken": CREDENTIALS,
    "token has expired": CREDENTIALS,
    "kms:": _KEY,
    "Unable to parse ExceptionName": _SPEAK,
    "Failed to parse": _SPEAK,
}


def translate(text: str, place: str) -> TailraceError:
    """The error for what came of an operation on ``place``. Nothing of credentials is in Arrow's texts."""
    match = _TEXT.search(text)
    if match is None:
        if "No response body" in text or "XML" in text:
            return OperatorError(f"{place}: {_first_line(text)}", hint=_SPEAK)
        return TransientError(f"{place}: {_first_line(text)}", hint=_REACH)
    code, status, operation = match["code"], match["status"], match["operation"]
    said = _REQUEST.sub("", _first_line(match["message"])).rstrip(".")
    what = f"{place}: {operation} failed: {said or code}"
    if code.startswith("KMS_"):
        return OperatorError(what, hint=_KEY)
    for word, hint in _WORDS.items():
        if word in said:
            return OperatorError(what, hint=hint)
    if code == "NETWORK_CONNECTION":
        return TransientError(f"{place} is out of reach: {said}", hint=_REACH)
    if code in _OPERATOR:
        return OperatorError(f"{place}: {operation} was refused: {said or code}", hint=_OPERATOR[code])
    if code in _AGAIN or (status or "").startswith("5"):
        return TransientError(f"{what} ({code.lower()})", hint="the object store is busy or down; try again")
    hint = _STATUS.get(status or "", "see what the object store says")
    if status == "400" and operation in _UPLOADS:
        hint = _CHECKSUMS
    return OperatorError(what if status is None else f"{what} (HTTP {status})", hint=hint)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
