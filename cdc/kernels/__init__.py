"""Which loops over frames, rows and cells are compiled?

May import: numba, numpy, and eventstore's compiler, model and errors.
"""
