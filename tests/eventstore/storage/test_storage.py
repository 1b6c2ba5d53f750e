"""The contract of every storage: a folder, an object store behind a real S3 API, and the stricter twin in memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.eventstore.errors import IntegrityError, MissingFile, OperatorError, TransientError
from tailrace.eventstore.storage import LocalStorage, ObjectStorage, Storage
from tailrace.eventstore.storage.base import NameTaken
from tailrace.eventstore.storage.encryption import EncryptedUploads, Encryption
from tests.support.memory_storage import MemoryStorage
from tests.support.object_store import S3Server

LARGE = bytes(range(256)) * (
    12 << 12
)  # 12 MiB: more than one part of an upload, and than is read into memory

ENCRYPTED = (
    b'<ServerSideEncryptionConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Rule>'
    b"<ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm>"
    b"</ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
)


@pytest.fixture(
    params=["folder", "objects", "encrypted", pytest.param("s3proxy", marks=pytest.mark.servers), "memory"]
)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """An empty storage of each kind."""
    if request.param == "folder":
        yield LocalStorage(tmp_path / "deep" / "root")
    elif request.param == "objects":
        server = request.getfixturevalue("s3")
        yield ObjectStorage(request.getfixturevalue("bucket"), "deep/root", server.endpoint)
    elif request.param == "encrypted":
        server = request.getfixturevalue("s3")
        yield ObjectStorage(
            request.getfixturevalue("bucket"), "deep/root", server.endpoint, encryption=Encryption("AES256")
        )
    elif request.param == "s3proxy":
        server = request.getfixturevalue("s3proxy")
        yield ObjectStorage(request.getfixturevalue("s3proxy_bucket"), "deep/root", server.endpoint)
    else:
        twin = MemoryStorage()
        yield twin
        twin.check_closed()


def listed(storage: Storage, prefix: str = "") -> list[str]:
    """What is there, for storages that list late: by the second time they have it."""
    list(storage.list(prefix))
    return sorted(storage.list(prefix))


def test_a_file_is_whole_and_has_what_was_written(storage: Storage) -> None:
    storage.prepare()
    storage.write("a/b/c.bin", b"content")
    storage.write("a/empty", pa.py_buffer(b""))
    storage.write("a/large", LARGE)
    assert storage.open("a/b/c.bin").to_pybytes() == b"content"
    assert storage.open("a/empty").size == 0
    assert storage.open("a/large").to_pybytes() == LARGE
    assert storage.exists("a/b/c.bin") and not storage.exists("a/b") and not storage.exists("a/none")


def test_a_file_is_never_overwritten(storage: Storage) -> None:
    storage.write("a/b", b"first")
    with pytest.raises(IntegrityError, match="never overwritten"):
        storage.write("a/b", b"second")
    with pytest.raises(IntegrityError, match="never overwritten"), storage.create("a/b") as file:
        file.write(b"third")
    assert storage.open("a/b").to_pybytes() == b"first"


def test_nothing_is_seen_of_a_file_before_it_is_whole(storage: Storage) -> None:
    with storage.create("a/b") as file:
        file.write(b"half")
        assert not storage.exists("a/b")
        with pytest.raises(MissingFile):
            storage.open("a/b")
        file.write(b", whole")
    assert storage.open("a/b").to_pybytes() == b"half, whole"


def test_a_writer_that_fails_leaves_no_file_of_that_name(storage: Storage) -> None:
    def fail() -> None:
        with storage.create("a/b") as file:
            file.write(LARGE)
            raise KeyError("why")

    with pytest.raises(KeyError):
        fail()
    assert not storage.exists("a/b") and "a/b" not in listed(storage)


def test_parts_of_a_file_are_read_without_the_rest(storage: Storage) -> None:
    storage.write("a", LARGE)
    with storage.ranges("a") as file:
        assert file.size() == len(LARGE)
        file.seek(len(LARGE) - 10)
        assert file.read(100) == LARGE[-10:]
        assert bytes(file.read_at(7, 1000)) == LARGE[1000:1007]


def test_a_missing_file_is_named(storage: Storage) -> None:
    for read in (storage.open, lambda path: storage.ranges(path).__enter__()):
        with pytest.raises(MissingFile, match="a/none is missing") as caught:
            read("a/none")
        assert caught.value.hint


def test_files_are_listed_below_a_folder_with_size_and_time(storage: Storage) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)  # an object store's times are whole seconds
    for path in ("a/b/2", "a/b/1", "a/c", "ab/d"):
        storage.write(path, b"1234")
    assert listed(storage) == ["a/b/1", "a/b/2", "a/c", "ab/d"]
    assert listed(storage, "a") == ["a/b/1", "a/b/2", "a/c"]
    assert listed(storage, "none") == []
    for file in storage.files("a"):
        assert file.bytes == 4 and before < file.modified < datetime.now(UTC) + timedelta(seconds=2)


def test_a_file_is_removed_once(storage: Storage) -> None:
    storage.write("a/b", b"1")
    storage.write("a/c", b"2")
    assert storage.delete("a/b") and not storage.delete("a/b") and not storage.delete("none/at/all")
    assert not storage.exists("a/b") and listed(storage) == ["a/c"]
    assert storage.open("a/c").to_pybytes() == b"2"


def test_a_trial_leaves_nothing(storage: Storage) -> None:
    storage.prepare()
    storage.prepare()
    assert listed(storage) == []


def test_storages_go_to_other_processes_by_their_names_alone(storage: Storage) -> None:
    if isinstance(storage, MemoryStorage):
        with pytest.raises(TypeError, match="this process"):
            pickle.dumps(storage)
        return
    storage.write("a", b"1")
    moved: Storage = pickle.loads(pickle.dumps(storage))
    assert moved == storage and moved.open("a").to_pybytes() == b"1"


def test_the_default_encryption_of_a_bucket_covers_what_is_written(s3: S3Server, bucket: str) -> None:
    """Without a setting no header asks for it; the server shows it on a plain HEAD."""
    s3.ask("PUT", f"/{bucket}?encryption", ENCRYPTED)
    storage = ObjectStorage(bucket, "log", s3.endpoint)
    storage.write("small", b"1")
    storage.write("large", LARGE)
    for name in ("small", "large"):
        assert s3.ask("HEAD", f"/{bucket}/log/{name}")["x-amz-server-side-encryption"] == "aws:kms"


@pytest.mark.parametrize("asked", [Encryption("AES256"), Encryption("aws:kms", "key-7")], ids=str)
def test_what_is_written_is_encrypted_as_configured(s3: S3Server, bucket: str, asked: Encryption) -> None:
    storage = ObjectStorage(bucket, "log", s3.endpoint, encryption=asked)
    storage.prepare()
    storage.write("small", b"1")
    with storage.create("large") as file:
        file.write(LARGE)
    for name in ("small", "large"):
        shown = s3.ask("HEAD", f"/{bucket}/log/{name}")
        assert shown["x-amz-server-side-encryption"] == asked.method
        assert shown.get("x-amz-server-side-encryption-aws-kms-key-id") == asked.kms_key


def test_what_refuses_encrypted_uploads_is_said_as_of_others(s3: S3Server, bucket: str) -> None:
    asked = Encryption("AES256")
    with pytest.raises(OperatorError, match="bucket") as caught:
        ObjectStorage("no-such-bucket", "log", s3.endpoint, encryption=asked).prepare()
    assert "create the bucket" in caught.value.hint
    with pytest.raises(TransientError) as away:
        EncryptedUploads(asked, "http://127.0.0.1:1", None).put(bucket, "x", b"1", "x")
    assert "store.s3.endpoint" in away.value.hint
    s3.demand_users(True)
    try:
        with pytest.raises(OperatorError) as refused:
            EncryptedUploads(asked, s3.endpoint, None).put(bucket, "x", b"1", "x")
    finally:
        s3.demand_users(False)
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint


@pytest.mark.servers
def test_a_server_that_does_not_encrypt_as_configured_gets_nothing(
    s3proxy: S3Server, s3proxy_bucket: str
) -> None:
    plain = ObjectStorage(s3proxy_bucket, "log", s3proxy.endpoint)
    storage = ObjectStorage(s3proxy_bucket, "log", s3proxy.endpoint, encryption=Encryption("aws:kms"))
    with pytest.raises(OperatorError) as caught:
        storage.prepare()
    assert "unset store.s3.encryption" in caught.value.hint
    assert not list(plain.list())


@pytest.mark.servers
def test_a_server_that_refuses_the_clients_checksums_is_recognized(
    s3proxy: S3Server, s3proxy_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REQUEST_CHECKSUM_CALCULATION")
    storage = ObjectStorage(s3proxy_bucket, "log", s3proxy.endpoint, "us-east-2")  # a client of its own
    with pytest.raises(OperatorError, match="PutObject failed") as caught:
        storage.prepare()
    assert "AWS_REQUEST_CHECKSUM_CALCULATION=WHEN_REQUIRED" in caught.value.hint


Misuse = Callable[[MemoryStorage], object]


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda twin: twin.write("once", b""), id="a name again after its file was removed"),
        pytest.param(lambda twin: twin.write("held/below", b""), id="a file as a folder"),
        pytest.param(lambda twin: twin.delete("held"), id="a file removed while it is read"),
        pytest.param(lambda twin: twin.check_closed(), id="a reader left open"),
        pytest.param(lambda twin: twin.write("../out", b""), id="a name that leaves the folder"),
    ],
)
def test_the_twin_refuses_what_a_disk_lets_pass(misuse: Misuse) -> None:
    twin = MemoryStorage()
    twin.write("once", b"")
    twin.delete("once")
    twin.write("held", b"")
    with twin.ranges("held"), pytest.raises((IntegrityError, RuntimeError, ValueError)):
        misuse(twin)


@pytest.mark.parametrize(
    "name", ["../victim", "log/../../victim", "/tmp/none/victim", "log//x", "./x", "", "a\0b"]
)
def test_a_name_never_leads_out_of_the_storage(storage: Storage, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "deep" / "victim"
    victim.parent.mkdir(exist_ok=True)
    victim.write_text("not ours")
    for act in (
        lambda: storage.open(name),
        lambda: storage.write(name, b"x"),
        lambda: storage.exists(name),
        lambda: storage.delete(name),
    ):
        with pytest.raises(IntegrityError, match="no name of a file of the log"):
            act()
    assert victim.read_text() == "not ours"


def test_a_link_inside_a_folder_that_was_handed_over_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("not ours")
    root = tmp_path / "root"
    root.mkdir()
    (root / "log").symlink_to(outside)
    (root / "file").symlink_to(outside / "victim")
    (tmp_path / "link").symlink_to(root)
    for storage in (LocalStorage(root), LocalStorage(tmp_path / "link")):
        for name in ("log/victim", "log/new", "file"):
            for act in (storage.open, storage.delete, storage.exists):
                with pytest.raises(IntegrityError, match="is a link, or behind one"):
                    act(name)
            with pytest.raises(IntegrityError, match="is a link, or behind one"):
                storage.write(name, b"x")
        storage.write(f"in-{len(listed(storage))}", b"x")  # the folder itself may be one
    assert [each.name for each in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "not ours"


def test_of_two_that_make_a_file_at_once_the_later_one_learns_that_its_name_is_taken(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.prepare()
    with (
        pytest.raises(NameTaken, match="exists already"),
        storage.create("a"),
        storage.create("a") as other,
    ):
        other.write(b"made")
    assert bytes(storage.open("a")) == b"made"
