"""How do the schemas of the catalog, of consumer groups and of a source change?

``run`` executes ``catalog`` and ``groups``; ``source`` is SQL that capture executes. Imports nothing of ours.
"""
