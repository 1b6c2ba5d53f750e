"""One Redis key for each row: how rows lie there, how they are written by scripts and in bulk, and scanned.

Monotonic: each row carries the epoch that wrote it, and the fence comes last. Imports what sinks share.
"""
