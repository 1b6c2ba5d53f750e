"""A store moves to another catalog and another place of its segments, whole or not at all."""
