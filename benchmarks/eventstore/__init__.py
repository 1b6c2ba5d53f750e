"""How fast the log is appended to, read and compacted, and what a year leaves of it."""
