"""Migrations of the tables of consumer groups: ``tailrace.eventstore.catalog.group_tables``."""
