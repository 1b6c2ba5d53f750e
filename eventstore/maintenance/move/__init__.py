"""How does a store move to another catalog and another place of its segments, whole or not at all?
How is it copied?

May import retention, files, and the rooms below maintenance.
"""
