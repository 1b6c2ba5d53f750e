"""Schema changes, shipped in the wheel: ``catalog`` (the log's own tables) and ``source`` (objects in a source)."""
