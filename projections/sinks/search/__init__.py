"""A full-text index for each generation: how rows become documents, and how they are searched.

Atomic: rows and fence of a step are one commit of the index. Imports what sinks share.
"""
