"""What happens in one session: receive, assemble, append, confirm?

May import: every room of cdc except capture and replay.
"""
