"""How does the log's content become a result: what is read, the function over it, and one bucket's files?

Imports context and the rooms below it. What runs in tasks needs no catalog.
"""
