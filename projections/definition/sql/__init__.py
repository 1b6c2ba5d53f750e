"""How does a file of SQL become a definition: its header, its query, and which keys its inputs affect?

Imports the definition's model; sqlglot parses.
"""
