"""Parquet files that any tool can read: a folder for each step of a generation, and links to the latest.

Atomic: the rename of one link shows a step. Imports what sinks share.
"""
