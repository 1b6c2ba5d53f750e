"""Upkeep of the log: it changes where rows lie, never what readers see."""
