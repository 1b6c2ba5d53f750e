"""Migrations of the catalog: ``eventstore.tables``."""
