"""How do rows lie in a file: their order, encoding and hashes, how they are merged, selected and copied?

May import catalog (names of files), storage and what is below them.
"""
