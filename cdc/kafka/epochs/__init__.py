"""Which of the records that came become an epoch, and what rows are in it? No broker, no catalog, no clock.

May import: decoding and its result, parked and repeats, and eventstore's model and errors.
"""
