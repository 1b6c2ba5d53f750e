"""Which rows and events came before? Connectors send some again.

May import: the result of the room above, and eventstore.
"""
