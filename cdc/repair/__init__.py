"""Does the log equal its source, and which corrections end a difference?

May import: setup, snapshot, topics, columnar, postgres and the rooms below.
"""
