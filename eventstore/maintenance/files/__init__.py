"""How do many small epochs become few large files, and when do old files go?"""
