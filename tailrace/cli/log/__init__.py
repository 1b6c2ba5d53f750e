"""``tailrace log``: what is in the log, row by row; is it what was written; erasing from it.

May import the ground and what all commands share (``invocation``, ``errors``, ``values``, ``progress``).
"""
