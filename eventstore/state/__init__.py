"""What is the latest row of each key at a position, in the newest schema?

May import log and what is below it.
"""
