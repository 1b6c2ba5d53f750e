"""Migrations of the catalog: ``tailrace.eventstore.catalog.tables``."""
