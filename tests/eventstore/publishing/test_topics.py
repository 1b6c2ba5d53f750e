"""Which Kafka topic rows go to, and that rows of two tables are not mixed unasked."""

from __future__ import annotations

from tailrace.eventstore.errors import OperatorError
from tailrace.eventstore.model.topic import TopicId
from tailrace.eventstore.publishing.names import published_name, require_apart
from tailrace.eventstore.settings import PublicationSettings

ORDERS, CLIENTS = TopicId.table("shop", "public", "orders"), TopicId.table("shop", "crm", "clients")
MINUS, UNDERSCORE = TopicId.table("shop", "public", "a b"), TopicId.table("shop", "public", "a_b")
OLD = TopicId.table("shop", "archive", "orders")


def refused(topics: list[TopicId], template: str, *, compact: bool = False) -> str:
    settings = PublicationSettings(destination="bus", topics=("*",), topic=template, compact=compact)
    try:
        require_apart(topics, settings, {"positions"})
    except OperatorError as error:
        return error.message
    return ""


def test_two_tables_that_one_name_would_mix_are_refused_with_both_names() -> None:
    for topics, template in (([MINUS, UNDERSCORE], "{topic}"), ([ORDERS, OLD], "feed.{table}")):
        told = refused([CLIENTS, *topics], template)
        assert all(each.text in told for each in topics), told
        assert published_name(topics[0], template) in told
    assert not refused([ORDERS, OLD, CLIENTS, MINUS], "{topic}")


def test_a_topic_that_is_shared_on_purpose_is_not_compacted_and_no_chance() -> None:
    assert not refused([ORDERS, OLD, CLIENTS], "everything")
    assert not refused([ORDERS, MINUS], "{source}.{schema}")
    assert refused([ORDERS, OLD], "everything", compact=True)
    assert refused([TopicId.table("shop", "a b", "x"), TopicId.table("shop", "a_b", "y")], "{schema}")


def test_no_row_goes_to_where_positions_are() -> None:
    assert "the publication's own records" in refused([ORDERS], "positions")
