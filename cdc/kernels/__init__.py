"""The compiled passes over frames and rows: the only code that needs numba."""
