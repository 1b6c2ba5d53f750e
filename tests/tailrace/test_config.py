"""Reading ``tailrace.toml``: what is found, overlaid and expanded, and what is said about what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.config.load import load_configuration, load_settings
from tailrace.eventstore.errors import UsageError
from tailrace.eventstore.settings import KafkaSourceSettings, PostgresSourceSettings, Settings

# TOML basic strings are JSON strings as far as these characters go.
_CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"])
KAFKA = "[sources.a]\nkind = 'kafka'\nbrokers = ['h:9092']\ntopics = ['t.public.*']\n"
_TEXT = st.text(_CHARACTERS, max_size=40)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_ENV", raising=False)
    monkeypatch.delenv("TAILRACE_CONFIG", raising=False)


def write(folder: Path, text: str) -> Path:
    file = folder / "tailrace.toml"
    file.write_text(text, encoding="utf-8")
    return file


def postgres(settings: Settings, name: str = "shop") -> PostgresSourceSettings:
    found = settings.sources[name]
    assert isinstance(found, PostgresSourceSettings)
    return found


def message(folder: Path, text: str, env: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_settings(write(folder, text), env)
    return str(caught.value)


def test_an_empty_file_gives_the_defaults_anchored_at_its_folder(tmp_path: Path) -> None:
    store = load_settings(write(tmp_path, "")).store
    assert store.catalog == f"sqlite:///{tmp_path}/.tailrace/catalog.db"
    assert store.segments == tmp_path / ".tailrace/segments"
    assert store.partitions == Settings().store.partitions


def test_relative_paths_are_relative_to_the_file_and_absolute_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    file = write(
        tmp_path,
        """
        [store]
        catalog = "sqlite:///c.db"
        segments = "/srv/segments"
        [sinks.search]
        kind = "search"
        path = "index"
        """,
    )
    settings = load_settings(file)
    assert settings.store.catalog == f"sqlite:///{tmp_path}/c.db"
    assert settings.store.segments == Path("/srv/segments")
    assert settings.sinks["search"].path == tmp_path / "index"


def test_a_catalog_on_a_server_is_not_taken_for_a_path(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, '[store]\ncatalog = "postgresql://host/log"'))
    assert settings.store.catalog == "postgresql://host/log"


def test_the_file_is_found_by_argument_then_variable_then_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "variable", "argument"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f'[store]\nname = "{name}"')
    monkeypatch.chdir(tmp_path / "here")
    assert load_settings().store.name == "here"
    monkeypatch.setenv("TAILRACE_CONFIG", str(tmp_path / "variable" / "tailrace.toml"))
    assert load_settings().store.name == "variable"
    assert load_settings(tmp_path / "argument" / "tailrace.toml").store.name == "argument"


def test_no_file_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no tailrace\.toml in .*\n.*init --example"):
        load_settings()
    with pytest.raises(UsageError, match=r"nowhere\.toml \(from --config\)"):
        load_settings(tmp_path / "nowhere.toml")


OVERLAY = """
[sources.shop]
dsn = "postgresql://dev/shop"
tables = ["public.*", "!public.audit_*"]
[env.prod]
protected = true
[env.prod.sources.shop]
dsn = "postgresql://prod/shop"
"""


def test_an_overlay_replaces_keys_and_keeps_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, OVERLAY)
    assert postgres(load_settings(file)).dsn.get_secret_value() == "postgresql://dev/shop"
    prod = load_settings(file, "prod")
    assert prod.protected
    assert postgres(prod).dsn.get_secret_value() == "postgresql://prod/shop"
    assert postgres(prod).tables == ("public.*", "!public.audit_*")
    monkeypatch.setenv("TAILRACE_ENV", "prod")
    assert load_settings(file) == prod


def test_an_unknown_environment_names_the_known_ones_and_the_nearest(tmp_path: Path) -> None:
    said = message(tmp_path, OVERLAY, "prdo")
    assert "no environment 'prdo' (defined: prod)" in said
    assert "did you mean 'prod'?" in said


@given(value=_TEXT.filter(lambda text: "\0" not in text), around=_TEXT)
@settings(max_examples=60)
def test_expansion_puts_any_value_in_place_and_nothing_else_changes(
    tmp_path_factory: pytest.TempPathFactory, value: str, around: str
) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "secret").write_text(value + "\n", encoding="utf-8", newline="")
    plain = around.replace("$", "$$")
    text = json.dumps(
        f"{plain}${{A_SECRET}}{plain}|${{file:secret}}|${{NOT_SET:-fallback}}", ensure_ascii=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET", value)
        found = load_settings(write(folder, f"[sources.shop]\ndsn = {text}"))
    expected = f"{around}{value}{around}|{value}|fallback"
    assert postgres(found).dsn.get_secret_value() == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${SHOP_DSN_NOT_SET}", "sources.shop.dsn: the environment variable SHOP_DSN_NOT_SET is not set"),
        ("${file:nowhere}", "nowhere cannot be read: No such file"),
        ("${SHOP", "sources.shop.dsn: a ${ without its }"),
        ("${A B}", "sources.shop.dsn: ${A B} names no variable"),
    ],
)
def test_a_reference_that_leads_nowhere_names_the_key_and_the_way_out(
    tmp_path: Path, value: str, said: str
) -> None:
    text = message(tmp_path, f'[sources.shop]\ndsn = "{value}"')
    assert said in text
    assert "hint: " in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("protectd = true", "protectd: unknown key; did you mean 'protected'?"),
        ("[store]\nsegmnts = 'x'", "store.segmnts: unknown key; did you mean 'segments'?"),
        ("[sources.shop]\ndns = 'x'", "sources.shop.dns: unknown key; did you mean 'dsn'?"),
        ("[store]\nzzz = 1", "store.zzz: unknown key; allowed here: name, catalog, segments, partitions"),
        ("[sources.shop]", "sources.shop.dsn: is required"),
        ("[store]\nname = 'Acme Inc'", "store.name: a name is 1 to 31 of a-z, 0-9 and _"),
        ("[sources.Shop]\ndsn = 'x'", "sources.Shop: a name is 1 to 31 of a-z, 0-9 and _"),
        (
            "[sinks.a]\nkind = 'kafka'",
            "sinks.a.kind: must be 'postgres', 'redis', 'search' or 'parquet' (got 'kafka')",
        ),
        (
            "[publish.a]\ndestination = 'b'\ntopics = ['x.*']",
            "publish.a.destination: there is no table [destinations.b]",
        ),
        (
            "[publish.a]\ndestination = 'b'\ntopics = ['x.*']\ntopic = 'all of {them}'",
            "publish.a.topic: must be a name of letters, digits",
        ),
        ("[sinks.a]\nkind = 'redis'", "sinks.a: a redis sink needs url = …"),
        (
            "[sinks.a]\nkind = 'search'\npath='x'\ndsn='y'",
            "sinks.a.dsn: a search sink has no dsn (it has path)",
        ),
        ("[sources.a]\ndsn='x'\nlinger_ms = -1", "sources.a.linger_ms: must be at least 0 (got -1)"),
        (
            "[sources.a]\ndsn='x'\ntables = 'public.*'",
            "sources.a.tables: should be a valid tuple (got 'public.*')",
        ),
        (
            "[sources.a]\ndsn='x'\n[sources.a.columns]\n'public.t.c' = 'truncate:x'",
            'sources.a.columns."public.t.c": must be "drop", "hash", "truncate:N" or "plain" (got \'truncate:x\')',
        ),
        (
            "[sources.a]\ndsn='x'\n[sources.a.columns]\n'public.t.c' = 'hash'",
            'sources.a: a column has the policy "hash", which needs hash_key = "${VAR}" or "${file:…}"',
        ),
        (
            "[topics.'shop.*']\nretention = '90 years'",
            'topics."shop.*".retention: must be "keep", a time ("30d": a number and one of s, min, h, d, w)',
        ),
        ("[topics.a]\nretention = '1d + 2d'", "topics.a.retention: must be"),
        (
            "[topics.a]\nretention = '1d'\ncompact_after = '1h'",
            'topics.a: compact_after is for retention = "compact", which this is not',
        ),
        ("[store.topics.a]\nretention = '1d'", "store.topics: unknown key"),
        (KAFKA + "[sources.a.tables.'public.t']\ncolumns = {}", "should have at least 1 item"),
        (
            KAFKA + "[sources.a.tables.'public.t']\ncolumns = {id = 'integer'}\nkey = ['no']",
            'sources.a.tables."public.t": key names no, which columns does not have',
        ),
        (KAFKA + "dsn = 'x'", "sources.a.dsn: unknown key; allowed here: brokers, tls,"),
        (KAFKA + "dead_letter = 'd'", 'sources.a: dead_letter goes with on_bad_record = "park"'),
        (
            "[sources.a]\nkind = 'kafka'\nbrokers = ['h:9092']",
            "sources.a: name what to capture: topics of Debezium,",
        ),
        ("[destinations.a]\nurl = 'x'", "destinations.a.kind: is required"),
        (
            "[destinations.a]\nkind = 'webhok'",
            "destinations.a.kind: must be 'kafka', 'webhook', 'redis', 'amqp', 'amqp1', 'nats', 'sqs', 'kinesis' or"
            " 'own' (got 'webhok')",
        ),
        (
            "[destinations.a]\nkind = 'webhook'\nurl = 'https://h/x'\nsecret = 's3cret'",
            "destinations.a.secret: must be whsec_ and 24 to 64 bytes in base64 (got text not shown",
        ),
        (
            "[destinations.a]\nkind = 'webhook'\nurl = 'ftp://h/x'\nsecret = 'whsec_" + "QUFB" * 8 + "'",
            "destinations.a.url: must begin with https://HOST or http://HOST (got text not shown",
        ),
        (
            "[destinations.a]\nkind = 'webhook'\nurl = 'https://h/x'\nsecret = 'whsec_" + "QUFB" * 8 + "'\n"
            "[publish.b]\ndestination = 'a'\ntopics = ['*']\npartitions = 3",
            "publish.b.partitions: only a destination of the kind kafka has it",
        ),
        ("[publish.b]\ndestination = 'a'", "publish.b: must name either topics or a projection"),
        (
            "[publish.b]\ndestination = 'a'\ntopics = ['*']\nprojection = 'p'",
            "publish.b: must name either topics or a projection",
        ),
        (
            "[publish.b]\ndestination = 'a'\nprojection = 'p'\nformat = 'debezium'",
            "publish.b: a projection is published as rows: leave format out",
        ),
        ("[sources.a]\nkind = 'mysql'", "sources.a.kind: must be 'postgres' or 'kafka' (got 'mysql')"),
        (
            "[sources.a]\nkind = 'kafka'\nbrokers = ['h']\ntopics = ['t']",
            "sources.a.brokers.0: must be HOST:PORT",
        ),
        (
            KAFKA + "sasl = 'plain'\nusername = 'u'\npassword = 'hunter2'",
            "sends the password as it is: set tls = true",
        ),
        (KAFKA + "sasl = 'plain'", 'sources.a: sasl = "plain" needs username and password'),
        (KAFKA + "username = 'u'", "sources.a: username and password go with sasl"),
        (KAFKA + "certificate = 'c.pem'", "sources.a: certificate and certificate_key go together"),
        (KAFKA + "ca_file = 'c.pem'", "sources.a: ca_file and certificate go with tls = true"),
        ("[store\nname = 1", "is not TOML"),
        ("env = 1", "env: must hold one table per environment"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_file_the_key_and_what_is_allowed(
    tmp_path: Path, text: str, said: str
) -> None:
    found = message(tmp_path, text)
    assert said in found
    assert str(tmp_path / "tailrace.toml") in found


def test_a_source_of_kafka_has_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "correct horse")
    text = KAFKA + "tls = true\nsasl = 'scram-sha-512'\nusername = 'u'\npassword = '${SECRET}'\n"
    text += "ca_file = 'ca.pem'\ncatalog_dsn = 'postgresql://u:battery@h/d'\n"
    text += "[sources.a.tables.'public.t']\ncolumns = {id = 'integer', v = 'numeric(9,2)'}\nkey = ['id']"
    configuration = load_configuration(write(tmp_path, text))
    found = configuration.settings.sources["a"]
    assert isinstance(found, KafkaSourceSettings)
    assert found.ca_file == tmp_path / "ca.pem"
    assert list(found.tables["public.t"].columns) == ["id", "v"]
    assert {"correct horse", "battery"} <= configuration.settings.secrets()
    (warning,) = configuration.warnings
    assert warning.startswith("sources.a.catalog_dsn: a password is written in the file")
    monkeypatch.setenv("SECRET", "")
    written = write(tmp_path, text.replace("${SECRET}", "horse"))
    assert any(each.startswith("sources.a.password:") for each in load_configuration(written).warnings)


def test_all_errors_are_said_at_once(tmp_path: Path) -> None:
    said = message(tmp_path, "[store]\npartitions = 0\ninline_bytes = -1\n[sources.a]\ndsn = 'x'\nlinger = 1")
    assert "has 3 errors" in said
    assert {line.split(":")[0].strip() for line in said.splitlines()[1:4]} == {
        "store.partitions", "store.inline_bytes", "sources.a.linger",
    }  # fmt: skip


@pytest.mark.parametrize("dsn", ["postgresql://u:hunter2@h/d", "host=h password=hunter2"])
def test_a_password_in_the_file_is_warned_of_and_refused_in_a_protected_environment(
    tmp_path: Path, dsn: str
) -> None:
    file = write(tmp_path, f'[sources.shop]\ndsn = "{dsn}"\n[env.prod]\nprotected = true')
    assert "sources.shop.dsn: a password is written in the file" in load_configuration(file).warnings[0]
    with pytest.raises(UsageError, match="password is written in the file of a protected environment"):
        load_settings(file, "prod")


@pytest.mark.parametrize("value", ["${KEY:-correct horse battery}", "correct horse battery", "${KEY}x"])
def test_a_hash_key_comes_from_the_environment_or_a_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("KEY", "0123456789abcdef")
    text = '[sources.a]\ndsn = "x"\nhash_key = "{}"'
    said = message(tmp_path, text.format(value))
    assert "sources.a.hash_key: the key is written in the file" in said and "correct" not in said
    found = postgres(load_settings(write(tmp_path, text.format("${KEY}"))), "a").hash_key
    assert found is not None and found.get_secret_value() == "0123456789abcdef"
    (tmp_path / "key").write_text("from a file, long enough\n")
    found = postgres(load_settings(write(tmp_path, text.format("${file:key}"))), "a").hash_key
    assert found is not None and found.get_secret_value() == "from a file, long enough"
    monkeypatch.setenv("KEY", "short secret")
    said = message(tmp_path, text.format("${KEY}"))
    assert "sources.a.hash_key: must have 16 bytes or more" in said and "short secret" not in said


def test_a_password_from_the_environment_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    file = write(tmp_path, '[sources.shop]\ndsn = "postgresql://u:${PASSWORD}@h/d"')
    assert load_configuration(file).warnings == ()


@given(secret=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=20))
@settings(max_examples=30)
def test_no_message_shows_a_secret(tmp_path_factory: pytest.TempPathFactory, secret: str) -> None:
    folder, secret = tmp_path_factory.mktemp("config"), f"0{secret}0"  # no word of the message
    dsn = f"postgresql://u:{secret}@h/d"
    for text in (f"sources.shop = '{dsn}'", f"[sources.shop]\ndsn = ['{dsn}']", f"store = ['{dsn}']"):
        assert secret not in message(folder, text)
