"""Parquet files for whatever reads them: a folder for each step of a generation, and links to the newest.

Atomic: the rename of one link shows a step. Imports what sinks share.
"""
