"""When is a table's state written beside its rows, and how?

May import files, and the rooms below maintenance.
"""
