"""A bank that decides from events: the domain (``account.py``), a service that uses it, and its tests."""
