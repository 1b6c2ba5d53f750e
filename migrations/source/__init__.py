"""SQL for objects in a source database. A file of ``versions/`` that was released is never edited: a later one replaces
what it made. ``downs/`` takes one back and keeps the events. ``ddl/`` holds the optional event trigger.
``tailrace.eventstore.streams.database.event_tables`` and ``tailrace.cdc.postgres.ddl_trigger`` run them.
"""
