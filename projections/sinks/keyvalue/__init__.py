"""A sink over any key-value store that has transactions: the base of a user's own sink.

Atomic: rows and fence of a step commit together. Imports what sinks share.
"""
