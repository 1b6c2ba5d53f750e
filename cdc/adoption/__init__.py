"""How does a source go over from topics of Kafka to native capture of the same Postgres, and back?

What becomes of rows is decided without a server (``held``, ``carried``); ``window`` alone reads the slot.

May import: kafka, stream, setup and what is below, and eventstore.
"""
