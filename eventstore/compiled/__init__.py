"""How does a loop in Python become machine code, and what can it do beyond arrays? Only rooms with kernels need numba.

May import: numba, and eventstore's errors.
"""
