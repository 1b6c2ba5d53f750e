"""Does the plan of a projection keep keys apart, and is its result the same each time?

Top first: check, guards, analyse, then locality and determinism, which walk the plan. Below it: compute, generations.
"""
