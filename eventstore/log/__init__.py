"""How does a batch become an epoch, and how is the log read, followed, and cut at a position?

``log.Log`` is what all rooms above work with. May import metadata and what is below it.
"""
