"""Which loops over frames, rows and cells are compiled? Only this room needs numba.

May import: numba, numpy, and eventstore's model and errors.
"""
