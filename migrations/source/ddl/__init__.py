"""The event trigger that reports DDL in the stream: SQL that can be run again, and SQL that removes it."""
