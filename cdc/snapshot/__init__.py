"""How do rows that a table had before get into the log, beside its stream and at a known position?

May import: topics, context, columnar, postgres and the rooms below.
"""
