"""The optional event trigger tells of all that matters, harms nobody's DDL, survives a dump, can be taken out."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.postgres.connect import Address, connect
from tailrace.cdc.postgres.ddl_trigger import (
    FUNCTIONS,
    Trigger,
    install_script,
    install_trigger,
    read_trigger,
    remove_trigger,
)
from tailrace.cdc.setup.table_choice import Level
from tailrace.cdc.wire import ddl_message
from tailrace.embedded import PostgresServer
from tests.support.capturing import (
    RunningCapture,
    Site,
    assert_equals_source,
    execute,
    query,
    table,
)

TYPES = (
    "CREATE TYPE public.mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN public.feeling AS public.mood",
    "CREATE TYPE public.pair AS (n int, f public.feeling)",
    "CREATE TABLE public.plain (id int PRIMARY KEY, a text)",
    "CREATE TABLE public.direct (id int PRIMARY KEY, m public.mood)",
    "CREATE TABLE public.nested (id int PRIMARY KEY, p public.pair[])",
)


class TriggerMessages:
    """A database with the trigger, and its messages since they were last read."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.address = Address.parse(dsn)
        execute(dsn, *TYPES, "CREATE PUBLICATION ddl")
        execute(dsn, "SELECT pg_create_logical_replication_slot('ddl', 'pgoutput')")
        with connect(self.address) as connection:
            install_trigger(connection, self.address)
        self.messages()

    def messages(self) -> list[ddl_message.DdlMessage]:
        """Decoded by the server as ``tailrace.cdc.postgres.replication`` asks for it; only our messages."""
        found = query(
            self.dsn,
            "SELECT data FROM pg_logical_slot_get_binary_changes('ddl', NULL, NULL, 'proto_version', '1',"
            " 'publication_names', 'ddl', 'messages', 'true') WHERE substr(data, 1, 1) = 'M'",
        )
        # M, flags, LSN (8 bytes), prefix up to a zero, length (4 bytes), signature (32 bytes), a line, JSON
        contents = [data[data.index(b"\0", 10) + 5 :] for (data,) in found]
        return [ddl_message.parse(content[content.index(b"\n", 32) + 1 :]) for content in contents]

    def after(self, *statements: str) -> set[tuple[str, str]]:
        """(change, table) of the messages that statements lead to."""
        execute(self.dsn, *statements)
        names = dict(query(self.dsn, "SELECT oid::bigint, relname FROM pg_class"))
        return {
            (message.change.value, message.label[1] or names.get(message.relid, message.error))
            for message in self.messages()
        }


@pytest.fixture
def trigger_messages(database: str) -> Iterator[TriggerMessages]:
    yield TriggerMessages(database)
    execute(database, "SELECT pg_drop_replication_slot('ddl')")


@pytest.mark.versions
def test_its_messages_say_which_tables_a_command_touched_and_which_values_it_changed(
    trigger_messages: TriggerMessages,
) -> None:
    said = {
        "ALTER TABLE public.plain ADD COLUMN b int DEFAULT 7": {("", "plain")},
        "ALTER TABLE public.plain ADD COLUMN c uuid DEFAULT gen_random_uuid()": {("", "plain"), ("rewritten", "plain")},
        "ALTER TABLE public.plain ALTER a TYPE text USING upper(a)": {("", "plain"), ("rewritten", "plain")},
        "ALTER TABLE public.plain ALTER a TYPE varchar(9)": {("", "plain"), ("rewritten", "plain")},
        "ALTER TABLE public.plain ALTER a TYPE text": {("", "plain")},
        "ALTER TABLE public.plain ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED":
            {("", "plain"), ("rewritten", "plain")},
        "ALTER TABLE public.plain SET LOGGED": {("", "plain")},
        "VACUUM FULL public.plain": set(),
        "CREATE INDEX ON public.plain (b)": set(),
        "GRANT SELECT ON public.plain TO PUBLIC": set(),
        "ALTER TYPE public.mood ADD VALUE 'odd' BEFORE 'glad'": set(),
        "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'": {("revalued", "direct"), ("revalued", "nested")},
        "ALTER TYPE public.pair RENAME ATTRIBUTE n TO m": set(),
        "ALTER TYPE public.pair ADD ATTRIBUTE x int": {("revalued", "nested")},
        "DROP TYPE public.mood CASCADE": {("", "direct"), ("revalued", "nested")},
        "ALTER SCHEMA public RENAME TO moved": {("", "plain"), ("", "direct"), ("", "nested")},
        "CREATE TEMP TABLE mine (id int); ALTER TABLE mine ADD COLUMN a int; DROP TABLE mine": set(),
        "DROP SCHEMA moved CASCADE": {("dropped", "plain"), ("dropped", "direct"), ("dropped", "nested")},
    }  # fmt: skip
    assert {statement: trigger_messages.after(statement) for statement in said} == said


@pytest.mark.versions
def test_its_messages_describe_rows_of_a_table_as_values_of_another_and_partitions(
    trigger_messages: TriggerMessages,
) -> None:
    execute(
        trigger_messages.dsn,
        "CREATE TABLE public.holder (id int PRIMARY KEY, p public.plain)",
        "CREATE TABLE public.root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.leaf PARTITION OF public.root FOR VALUES FROM (0) TO (10)",
        "INSERT INTO public.root VALUES (1, 'a')",
    )
    assert trigger_messages.after("ALTER TABLE public.plain ADD COLUMN b int") == {
        ("", "plain"),
        ("revalued", "holder"),
    }
    execute(trigger_messages.dsn, "ALTER TABLE public.root ADD COLUMN b int DEFAULT 9")
    root, leaf = sorted(trigger_messages.messages(), key=lambda message: len(message.roots))
    assert [root.label[1], leaf.label[1]] == ["root", "leaf"] and leaf.roots == (root.relid,)
    assert root.schema is not None and root.schema.columns[2].fill == "9"
    execute(trigger_messages.dsn, "ALTER TABLE public.root ALTER a TYPE text USING upper(a)")
    rewritten = [
        message
        for message in trigger_messages.messages()
        if message.change is ddl_message.DdlChange.REWRITTEN
    ]
    assert [message.relids for message in rewritten] == [(leaf.relid, root.relid)]
    execute(
        trigger_messages.dsn,
        "ALTER TABLE public.root DETACH PARTITION public.leaf",
        "ALTER TABLE public.leaf SET LOGGED",
    )
    detached = [
        message
        for message in trigger_messages.messages()
        if message.change is ddl_message.DdlChange.REPARTITIONED
    ]
    assert [message.relids for message in detached] == [(leaf.relid, root.relid)]
    execute(
        trigger_messages.dsn,
        "CREATE TABLE public.middle (LIKE public.root) PARTITION BY RANGE (id)",
        "ALTER TABLE public.middle ATTACH PARTITION public.leaf FOR VALUES FROM (0) TO (10)",
    )
    trigger_messages.messages()
    execute(
        trigger_messages.dsn,
        "ALTER TABLE public.root ATTACH PARTITION public.middle FOR VALUES FROM (0) TO (10)",
    )
    (attached,) = [
        message
        for message in trigger_messages.messages()
        if message.change is ddl_message.DdlChange.REPARTITIONED
    ]
    assert attached.relids == (leaf.relid, root.relid) and attached.label == ("public", "leaf")


@pytest.mark.versions
def test_a_rolled_back_command_has_no_message(trigger_messages: TriggerMessages) -> None:
    with psycopg.connect(trigger_messages.dsn) as connection:
        connection.execute("SAVEPOINT s")
        connection.execute("ALTER TABLE public.plain ADD COLUMN b int")
        connection.execute("ROLLBACK TO s")
        connection.execute("ALTER TABLE public.direct ADD COLUMN b int")
    assert [message.label[1] for message in trigger_messages.messages()] == ["direct"]


@pytest.mark.versions
def test_a_user_without_any_right_on_it_alters_tables_and_that_has_its_message(
    trigger_messages: TriggerMessages,
) -> None:
    role = f"somebody_{os.getpid()}"
    execute(trigger_messages.dsn, f"CREATE ROLE {role}", f"ALTER TABLE public.plain OWNER TO {role}")
    trigger_messages.messages()
    try:
        with psycopg.connect(trigger_messages.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(f"SET ROLE {role}"))
            connection.execute("SET search_path = pg_temp")
            connection.execute("ALTER TABLE public.plain ADD COLUMN b int")
        assert [(message.change, message.label[1]) for message in trigger_messages.messages()] == [
            ("", "plain")
        ]
    finally:
        execute(trigger_messages.dsn, f"REASSIGN OWNED BY {role} TO CURRENT_USER", f"DROP ROLE {role}")


@pytest.mark.versions
def test_it_never_makes_a_command_fail(trigger_messages: TriggerMessages) -> None:
    """Its own defects have a message; when not even that is possible, the command is all the same done."""
    execute(trigger_messages.dsn, "DROP FUNCTION tailrace.ddl_tell(oid[], text, text)")
    trigger_messages.messages()
    execute(trigger_messages.dsn, "ALTER TABLE public.plain ADD COLUMN b int")
    assert [message.change for message in trigger_messages.messages()] == [ddl_message.DdlChange.FAILED]
    execute(trigger_messages.dsn, "DROP FUNCTION tailrace.ddl_say(oid, text, text, jsonb)")
    execute(
        trigger_messages.dsn,
        "ALTER TABLE public.plain ADD COLUMN c int",
        "ALTER TYPE public.mood ADD VALUE 'more'",
    )
    assert trigger_messages.messages() == []
    assert query(
        trigger_messages.dsn,
        "SELECT count(*)::int FROM information_schema.columns WHERE table_name = 'plain'",
    ) == [(4,)]


def test_a_description_too_long_for_capture_says_so_instead(trigger_messages: TriggerMessages) -> None:
    """Capture skips long messages, whoever wrote them. Nobody would compare the table then."""
    added = ", ".join(f"ADD COLUMN c{number} text DEFAULT repeat('x', 600000)" for number in range(8))
    execute(trigger_messages.dsn, f"ALTER TABLE public.plain {added}")
    (message,) = trigger_messages.messages()
    assert message.change is ddl_message.DdlChange.FAILED
    assert "public.plain" in message.error and "bytes" in message.error


@pytest.mark.versions
def test_it_is_put_in_again_and_taken_out_but_for_its_secret(trigger_messages: TriggerMessages) -> None:
    secret = query(trigger_messages.dsn, "SELECT secret FROM tailrace.secret")
    with connect(trigger_messages.address) as connection:
        for _ in range(2):
            install_trigger(connection, trigger_messages.address)
            assert read_trigger(connection, trigger_messages.address) is Trigger.ACTIVE
        execute(trigger_messages.dsn, "ALTER EVENT TRIGGER tailrace_ddl_end DISABLE")
        assert read_trigger(connection, trigger_messages.address) is Trigger.INACTIVE
        for _ in range(2):
            remove_trigger(connection, trigger_messages.address)
            assert read_trigger(connection, trigger_messages.address) is Trigger.ABSENT
    assert query(trigger_messages.dsn, "SELECT secret FROM tailrace.secret") == secret
    assert (
        query(
            trigger_messages.dsn, "SELECT proname FROM pg_proc WHERE pronamespace = 'tailrace'::regnamespace"
        )
        == []
    )
    execute(trigger_messages.dsn, "ALTER TABLE public.plain ADD COLUMN b int")


def test_it_survives_a_dump(
    trigger_messages: TriggerMessages, postgres: PostgresServer, tmp_path: Path
) -> None:
    dump = tmp_path / "dump.sql"
    subprocess.run(
        [postgres.bin("pg_dump"), "--file", dump, trigger_messages.dsn], check=True, capture_output=True
    )
    with connect(trigger_messages.address) as connection:
        remove_trigger(connection, trigger_messages.address)
    execute(trigger_messages.dsn, "DROP SCHEMA public, tailrace CASCADE", "DROP PUBLICATION ddl")
    execute(trigger_messages.dsn, "CREATE SCHEMA public")
    subprocess.run(
        [postgres.bin("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, trigger_messages.dsn],
        check=True,
        capture_output=True,
    )
    with connect(trigger_messages.address) as connection:
        assert read_trigger(connection, trigger_messages.address) is Trigger.ACTIVE
    trigger_messages.messages()
    assert trigger_messages.after("ALTER TABLE public.plain ADD COLUMN b int") == {("", "plain")}


@pytest.fixture
def site(database: str, store_dir: Path) -> Site:
    execute(
        database, *TYPES, "INSERT INTO public.plain VALUES (1, 'x'), (2, 'y')",
        "INSERT INTO public.nested VALUES (1, ARRAY[(1, 'sad')::public.pair])",
    )  # fmt: skip
    return Site.at(store_dir, database, tables=("public.*",))


@pytest.mark.versions
def test_init_installs_removes_and_shows_it(site: Site) -> None:
    def state() -> Trigger:
        address = Address.of(site.settings)
        with connect(address) as connection:
            return read_trigger(connection, address)

    def finding() -> str:
        (found,) = [each for each in site.init().findings if each.subject == "DDL trigger"]
        assert "tailrace init --ddl" in found.hint
        return found.what

    assert "CREATE EVENT TRIGGER" in site.init(ddl=True, dry_run=True).trigger and state() is Trigger.ABSENT
    assert site.init(ddl=True).trigger and state() is Trigger.ACTIVE
    assert not site.init(ddl=True).trigger and not site.init().trigger
    execute(site.dsn, "COMMENT ON EVENT TRIGGER tailrace_ddl_end IS 'tailrace ddl 2'")
    assert state() is Trigger.OUTDATED and finding() == "it was installed by another release than this one"
    assert site.init(ddl=True).trigger and state() is Trigger.ACTIVE
    execute(site.dsn, "ALTER EVENT TRIGGER tailrace_ddl_drop DISABLE")
    assert finding() == "it is there, but disabled or in parts"
    assert "DROP EVENT TRIGGER" in site.init(ddl=False, dry_run=True).trigger and state() is Trigger.INACTIVE
    assert site.init(ddl=False).trigger and state() is Trigger.ABSENT


def test_a_user_who_may_not_install_it_goes_on_without(site: Site, postgres: PostgresServer) -> None:
    role = f"capture_{os.getpid()}"
    execute(
        site.dsn, f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {site.dsn.rsplit('/', 1)[1]} TO {role}",
        *(f"ALTER TABLE public.{name} OWNER TO {role}" for name in ("plain", "direct", "nested")),
    )  # fmt: skip
    try:
        least = site.with_settings(dsn=site.dsn.replace("postgres@", f"{role}@"))
        preparation = least.init(ddl=True)
        found = [finding for finding in preparation.findings if finding.subject == "DDL trigger"]
        assert [finding.level for finding in found] == [Level.SKIPPED] and "superuser" in found[0].hint
        assert preparation.new and not preparation.trigger
        script = least.init(ddl=True, dry_run=True).trigger
        assert f'GRANT SELECT ON TABLE tailrace.secret TO "{role}"' in script
        execute(site.dsn, script)  # by somebody who may
        address = Address.of(least.settings)
        with connect(address) as connection:
            assert read_trigger(connection, address) is Trigger.ACTIVE
        execute(site.dsn, f"REVOKE SELECT ON tailrace.secret FROM {role}")  # noqa: S608
        (finding,) = [each for each in least.init(dry_run=True).findings if each.subject == "DDL trigger"]
        execute(site.dsn, finding.hint)
        assert not [each for each in least.init(dry_run=True).findings if each.subject == "DDL trigger"]
    finally:
        execute(
            site.dsn,
            f"REASSIGN OWNED BY {role} TO CURRENT_USER",
            f"DROP OWNED BY {role}",
            f"DROP ROLE {role}",
        )


def test_a_changed_script_has_another_number_which_databases_are_asked_for() -> None:
    """After a change: raise ``FUNCTIONS`` and the script's comment, then set both here."""
    code = "\n".join(line for line in install_script("").splitlines() if not line.lstrip().startswith("--"))
    assert f"IS 'tailrace ddl {FUNCTIONS}'" in code
    assert (FUNCTIONS, hashlib.sha256(code.encode()).hexdigest()[:16]) == (5, "9553bd5204c17e4b")


@pytest.mark.slow
@pytest.mark.versions
def test_with_it_only_what_rewrote_rows_is_read_again(site: Site) -> None:
    execute(
        site.dsn,
        "CREATE TABLE root (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE other (id int PRIMARY KEY, n int)",
        "INSERT INTO root VALUES (1, 1); INSERT INTO other VALUES (11, 1)",
    )
    site.init(ddl=True)
    plain, nested = table("plain"), table("nested")

    def since(capture: RunningCapture, topic: Any) -> int:
        return capture.store.topic(topic).complete_since or 0

    def read_again(capture: RunningCapture, topic: Any, before: int, statement: str) -> None:
        execute(site.dsn, statement)
        capture.wait_until(lambda: since(capture, topic) > before)

    with RunningCapture(site) as capture:
        capture.catch_up()
        loaded = since(capture, plain)
        execute(
            site.dsn,
            "ALTER TABLE public.plain ADD COLUMN b varchar(5) DEFAULT 'new'",
            "ALTER TABLE public.plain ALTER b TYPE text",
            "ALTER TABLE public.plain RENAME a TO c; ALTER TABLE public.plain RENAME b TO a",
            "ALTER TABLE public.plain DROP COLUMN c; ALTER TABLE public.plain ADD COLUMN c text",
            "ALTER TABLE public.plain RENAME TO simple",
            "ALTER TYPE public.mood ADD VALUE 'odd'",
        )
        capture.catch_up()
        assert since(capture, plain) == loaded
        assert [(column.id, column.name, column.fill) for column in capture.store.schemas(plain)[-1].columns] == [
            (1, "id", None), (3, "a", "new"), (4, "c", None),
        ]  # fmt: skip
        assert_equals_source(site)
    with RunningCapture(site) as capture:  # what a message said is known without a row since
        execute(site.dsn, "INSERT INTO public.simple VALUES (3, 'a', 'c')")
        capture.catch_up()
        assert len(capture.store.schemas(plain)[-1].columns) == 3 and since(capture, plain) == loaded
        # Together: no look at the catalog finds what a partition for a moment sent as rows of its root.
        read_again(
            capture, table("root"), loaded,
            "ALTER TABLE root ATTACH PARTITION other FOR VALUES FROM (10) TO (20); UPDATE root SET n = 2 WHERE id > 9;"
            " ALTER TABLE root DETACH PARTITION other",
        )  # fmt: skip
        capture.wait_until(lambda: since(capture, table("other")) > loaded)
        read_again(capture, plain, loaded, "ALTER TABLE public.simple ALTER a TYPE text USING a || '!'")
        read_again(capture, nested, loaded, "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'")
        read_again(capture, nested, since(capture, nested), "ALTER TYPE public.pair ADD ATTRIBUTE x int")
        assert_equals_source(site)
        assert any("rows rewritten" in message for message in capture.status.messages)
