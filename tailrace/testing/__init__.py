"""Suites that a user's own sink is tested with."""
