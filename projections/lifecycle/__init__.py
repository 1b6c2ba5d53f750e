"""What becomes of a generation: built, promoted, refreshed, rolled back, verified, listed, collected.

Imports refresh and the rooms below it; only the runner is above.
"""
