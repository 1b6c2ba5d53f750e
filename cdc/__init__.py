"""How do a Postgres database's changes become the log?

The rooms and their order are a contract in pyproject.toml. May import: eventstore.
"""
