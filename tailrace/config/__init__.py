"""What does ``tailrace.toml`` say? It is read, overlaid, expanded and checked; errors name the file and the key.

May import the ground alone: the settings' model is ``tailrace.eventstore.settings``.
"""
