"""Files that a crash left behind: written, but named by no epoch.

Every file's name carries the term of its writer, and a commit needs a running term. So a file that the catalog does not
name and whose term has ended can never become part of the log. Files of running terms are left alone: their epoch may
be about to be committed.
"""

from __future__ import annotations

from sqlalchemy import select

from tailrace.eventstore import failpoints
from tailrace.eventstore.catalog import tables, terms
from tailrace.eventstore.log.log import Log
from tailrace.eventstore.maintenance.files.owner import require_own_segments
from tailrace.eventstore.metadata.named_files import NAMING


def collect_orphans(log: Log) -> int:
    """Remove such files and give their number. Files with other names are left alone. Raises
    OperatorError, and removes none, when they are another catalog's."""
    require_own_segments(log)
    # The order matters: a file that is listed, of an ended term and not named *afterwards*, never will be.
    listed = [path for folder in ("log", "epochs") for path in log.storage.list(folder)]
    with log.catalog.read() as connection:
        named = set(connection.scalars(select(tables.retired.c.path)))  # these go when no reader needs them
        for table in NAMING:
            named.update(connection.scalars(select(table.c.path)))
        sources = tables.sources
        running = {row.name: row.term for row in connection.execute(select(sources.c.name, sources.c.term))}
        maintaining = {name: terms.current(connection, name) for name in terms.WRITERS}
    removed = 0
    for path in listed:
        match = terms.FILE_NAME.fullmatch(path)
        if match is None or path in named:
            continue
        current = maintaining[match["writer"]] if match["writer"] else running.get(match["source"])
        if current is not None and int(match["term"]) < current:
            removed += log.storage.delete(path)
            failpoints.hit("file_removed")
    return removed
