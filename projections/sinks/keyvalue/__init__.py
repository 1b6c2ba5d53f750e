"""A sink over any ordered key-value store that has transactions: the base of a sink of one's own.

Atomic: rows and fence of a step commit together. Imports what sinks share.
"""
