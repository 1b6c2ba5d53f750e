"""The jars of the embedded Kafka are found where Maven put them, and an error says the one command that brings them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.embedded import KafkaServer
from tailrace.embedded.kafka_jars import JARS_VARIABLE, _places, find_jars, local_repository
from tailrace.eventstore.errors import OperatorError
from tests.support.installed import kafka_jars


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def fill(repository: Path) -> list[Path]:
    jars = [repository / place for place in _places()]
    for jar in jars:
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.write_bytes(b"")
    return jars


def test_all_jars_of_the_local_repository_make_the_broker_and_one_less_does_not(home: Path) -> None:
    jars = fill(home / ".m2" / "repository")
    assert find_jars() == jars
    jars[3].unlink()
    with pytest.raises(OperatorError, match=rf"has no {jars[3].name}\n"):
        find_jars()


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ("<settings><localRepository>{}/own</localRepository></settings>", "own"),
        (
            '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">'
            "<localRepository>${{user.home}}/own</localRepository></settings>",
            "own",
        ),
        ("<settings/>", ".m2/repository"),
        ("no XML", ".m2/repository"),
    ],
)
def test_the_settings_of_maven_say_where_its_repository_is(home: Path, settings: str, place: str) -> None:
    (home / ".m2").mkdir()
    (home / ".m2" / "settings.xml").write_text(settings.format(home))
    assert local_repository(home) == home / place


def test_without_jars_the_error_says_the_command_that_brings_them(home: Path) -> None:
    server = KafkaServer()
    with pytest.raises(OperatorError, match=f"{JARS_VARIABLE} names no folder") as caught:
        server.start()
    assert "mvn -q -f " in caught.value.hint and "its folder libs" in caught.value.hint
    pom = Path(caught.value.hint.split(" -f ")[1].split()[0])
    assert "<artifactId>kafka_2.13</artifactId>" in pom.read_text()
    server.close()


def test_a_folder_that_is_named_counts_and_must_have_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home / ".m2" / "repository")
    monkeypatch.setenv(JARS_VARIABLE, str(home))
    with pytest.raises(OperatorError, match="not all of them are in"):
        find_jars()


@pytest.mark.servers
def test_the_list_of_jars_is_what_maven_resolves() -> None:
    assert {place.name for place in _places()} == {jar.name for jar in kafka_jars().glob("*.jar")}


@pytest.mark.servers
def test_a_broker_runs_from_a_repository(home: Path) -> None:
    for jar in fill(home / "repository"):
        shutil.copy(kafka_jars() / jar.name, jar)
    (home / ".m2").mkdir()
    (home / ".m2" / "settings.xml").write_text(
        f"<settings><localRepository>{home / 'repository'}</localRepository></settings>"
    )
    with KafkaServer() as server:
        assert server.port
