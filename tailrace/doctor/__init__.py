"""Is everything there that init, capture and run will need, and what is to be done if not?

May import capture, projections and the ground. It changes nothing.
"""
