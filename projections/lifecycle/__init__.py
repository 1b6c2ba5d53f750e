"""Build, promote, roll back, verify, collect."""
