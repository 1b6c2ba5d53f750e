"""Which values of a column may be written, and in which form? Pure.

May import: eventstore's model, settings and errors.
"""
