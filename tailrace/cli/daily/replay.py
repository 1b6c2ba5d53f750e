"""``tailrace replay``: a topic's changes between two positions, again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.invocation import NOTHING_TO_DO, Invocation, invocation_of
from tailrace.cli.position import fixed
from tailrace.eventstore.errors import UsageError
from tailrace.terminal import count

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.eventstore.model.position import Cut
    from tailrace.eventstore.model.topic import TopicId
    from tailrace.eventstore.store import Store

_EPOCH = re.compile(r"\d+")
STANDARD_OUTPUT = "-"


def replay(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="SOURCE.SCHEMA.TABLE or SOURCE.CATEGORY.", show_default=False)],
    into: Annotated[
        str,
        typer.Option(
            "--into", metavar="-|PROJECTION", help="Standard output, or a projection's new generation."
        ),
    ] = STANDARD_OUTPUT,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="EPOCH|LSN|TIME",
            show_default=False,
            help="First epoch; or the first LSN; or after this time. Default: the start.",
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="EPOCH|LSN|TIME",
            show_default=False,
            help="Last epoch; or before this LSN; or up to this time. Default: the head.",
        ),
    ] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="3 when nothing lay between.")
    ] = False,
) -> int:
    """Write the changes between two positions as JSON lines, or build a projection's new generation from them.

    A projection's new generation holds what the projection was at --to; it is not promoted.
    """

    invocation = invocation_of(context)
    start, end = fixed(invocation, "--from", start), fixed(invocation, "--to", end)
    with invocation.store() as store:
        info = store.topic(topic)
        if into == STANDARD_OUTPUT:
            replayed = _to_output(invocation, store, info.id, start, end)
        else:
            replayed = _to_projection(invocation, info.id, into, start, end)
    return NOTHING_TO_DO if detailed_exitcode and not replayed else 0


def _to_output(
    invocation: Invocation, store: Store, topic: TopicId, start: str | None, end: str | None
) -> int:
    from tailrace.cli.log.row_format import documents

    replayed = 0
    for batch in rows_between(store, topic, start, end):
        for document in documents(topic, batch):
            invocation.output.document(document)
            replayed += 1
    invocation.output.note(f"{count(replayed, 'change')} of {topic.text}")
    return replayed


def rows_between(
    store: Store, topic: TopicId, start: str | None, end: str | None
) -> Iterator[pa.RecordBatch]:
    """Rows of ``topic`` that the cut ``end`` holds and the cut before ``start`` does not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cut = store.cut(end)
    before = _cut_before(store, start)
    if before is None:
        yield from store.read(topic, cut=cut)
        return
    if before.epoch > cut.epoch or _is_reversed(start, end):
        raise UsageError(f"--from {start} is behind --to {end}", hint="--from comes before --to")
    limit = before.below_lsn.get(topic.source)
    if limit is None:
        yield from store.read(topic, after_epoch=before.epoch, cut=cut)
        return
    inside = before.inside[topic.source]  # the cut goes through this epoch: take the rows that it leaves out
    for batch in store.read(topic, after_epoch=inside - 1, cut=cut):
        outside = pc.or_(
            pc.greater(batch["_epoch"], pa.scalar(inside)),
            pc.greater_equal(batch["_lsn"], pa.scalar(limit)),
        )
        yield batch.filter(outside)


def _is_reversed(start: str | None, end: str | None) -> bool:
    """Two epochs, the later one first."""
    texts = (start or "", end or "")
    return all(_EPOCH.fullmatch(text) for text in texts) and int(texts[0]) > int(texts[1])


def _cut_before(store: Store, start: str | None) -> Cut | None:
    """What lies before ``--from``. An epoch is inside, so that ``--from 5 --to 5`` is epoch 5."""
    if start is None:
        return None
    if _EPOCH.fullmatch(start):
        return store.cut(int(start) - 1) if int(start) > 1 else None
    return store.cut(start)


def _to_projection(
    invocation: Invocation, topic: TopicId, name: str, start: str | None, end: str | None
) -> int:

    from tailrace.cli.projection.context import print_rebuilt, projection_context, select_projections
    from tailrace.projections.lifecycle import build

    if start is not None:
        raise UsageError(
            f"a projection is a function of all history up to a position, so --from {start} has no meaning for {name}",
            hint=f"leave --from out: tailrace replay {topic.text} --to {end or 'POSITION'} --into {name}",
        )
    with projection_context(invocation, f"replay into {name}") as projections:
        wanted = select_projections(invocation, projections, [name]).only()
        topics = projections.projections[wanted].topics
        if topic not in topics:
            raise UsageError(
                f"projection {name} does not read {topic.text}",
                hint=f"it reads {', '.join(each.text for each in topics)}",
            )
        built = build.rebuild(projections, wanted, as_of=end, promote=False)
    print_rebuilt(invocation, built)
    return 1
