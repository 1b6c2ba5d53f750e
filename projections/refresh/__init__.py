"""What does a refresh have to do, for which keys, and how does its step get into the log and the sink?

Imports analysis, for the proof that keys may be followed, and the rooms below it.
"""
