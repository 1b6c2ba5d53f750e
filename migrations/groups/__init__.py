"""Migrations of the tables of consumer groups: ``eventstore.subscriptions.tables``."""
