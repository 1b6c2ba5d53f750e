"""Schema changes, shipped in the wheel: ``catalog`` (the log's own tables) and ``groups`` (those of consumer groups),
made by ``run``, and ``source`` (objects in a source)."""
