"""How do many small epochs become few large files, and when do replaced files go?

May import log and what is below it; no other room of maintenance.
"""
