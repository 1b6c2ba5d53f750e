"""Is the log what was written?

``verify`` goes through it, ``findings`` says what is wrong. May import log and what is below it.
"""
