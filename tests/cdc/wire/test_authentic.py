"""A message is believed in its own transaction, at its own place, as it was signed; and in no other case."""

from __future__ import annotations

import hmac

import pytest

from tailrace.cdc.wire.authentic import claims_to_be_ours, sign, verify
from tailrace.cdc.wire.pgoutput import Message
from tests.cdc.messages import encode

PREFIX = "tailrace.ddl"
SECRET, BODY = b"s" * 32, b'{"v": 2}\nsecond line'
XID, LSN = (7 << 32) | 21, 5 << 32 | 0x90  # the stream sends the lower half of a transaction id


def believed(
    content: bytes, *, secret: bytes = SECRET, xid: int = 21, after: int = 0, lsn: int = LSN
) -> bool:
    body = verify(content, secret, PREFIX, xid=xid, after=after, lsn=lsn)
    assert body in (None, BODY)
    return body is not None


def test_a_signed_message_is_believed_in_its_transaction_alone() -> None:
    message = sign(SECRET, PREFIX, XID, LSN - 8, BODY)
    assert message[32:] == b"tailrace.ddl 30064771093 5/88\n" + BODY, "as the trigger writes it"
    assert believed(message)
    assert not believed(message, xid=22)
    assert not believed(sign(SECRET, PREFIX, XID + (1 << 31), LSN - 8, BODY))


def test_a_message_of_one_kind_is_none_of_another() -> None:
    message = sign(SECRET, "tailrace.emit", XID, LSN - 8, BODY)
    assert not believed(message)
    assert verify(message, SECRET, "tailrace.emit", xid=21, after=0, lsn=LSN) == BODY


def test_what_has_our_prefix_claims_to_be_ours() -> None:
    def claims(prefix: str) -> bool:
        return claims_to_be_ours(memoryview(encode(Message(True, LSN, prefix, b"tailrace.ddl"))))

    assert claims("tailrace.ddl") and claims("tailrace.")
    assert not any(map(claims, ("", "tailrace", "Tailrace.ddl", "x.tailrace.ddl")))


@pytest.mark.parametrize(("after", "lsn"), [(LSN - 8, LSN), (0, LSN - 8), (LSN - 8, LSN - 8)])
def test_its_place_is_behind_the_message_before_it_and_not_behind_its_own_end(after: int, lsn: int) -> None:
    message = sign(SECRET, PREFIX, XID, LSN - 8, BODY)
    assert believed(message, after=after, lsn=lsn)
    assert not believed(message, after=LSN - 7, lsn=lsn), "repeated"
    assert not believed(message, after=after, lsn=LSN - 9), "from later"


def test_what_another_secret_signed_or_somebody_changed_is_not_believed() -> None:
    message = sign(SECRET, PREFIX, XID, LSN, BODY)
    assert not believed(message, secret=b"t" * 32)
    for place in (0, 31, 32, len(message) - 1):
        changed = bytearray(message)
        changed[place] ^= 1
        assert not believed(bytes(changed)), place
    for cut in (0, 31, 32, len(message) - 1):
        assert not believed(message[:cut]), cut


@pytest.mark.parametrize(
    "head",
    [
        b"", b"tailrace.ddl 21 5/88", b"tailrace.ddl 21\n", b"tailrace.ddl 21 5/88 \n", b"tailrace.dml 21 5/88\n",
        b"tailrace.ddl x 5/88\n", b"tailrace.ddl 21 5\n", b"tailrace.ddl 21 5/g\n",
        b"tailrace.ddl %052d 5/88\n" % 21,
    ],
)  # fmt: skip
def test_what_is_signed_in_another_form_is_not_believed(head: bytes) -> None:
    assert believed(_signed(b"tailrace.ddl 21 5/88\n" + BODY))
    assert not believed(_signed(head + BODY))


def test_the_longest_head_is_read() -> None:
    longest = b"tailrace.ddl 18446744069414584341 FFFFFFFF/FFFFFFFF\n"
    assert len(longest) < 64
    assert believed(_signed(longest + BODY), lsn=(1 << 64) - 1)


def _signed(text: bytes) -> bytes:
    return hmac.digest(SECRET, text, "sha256") + text
