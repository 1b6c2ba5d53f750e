"""A table for each generation behind a view: how rows are copied, compared, indexed and granted.

Atomic: rows and fence of a step commit in one transaction. Imports what sinks share.
"""
