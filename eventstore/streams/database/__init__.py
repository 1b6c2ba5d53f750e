"""Streams in the tables of a source: which statements, on which connections?"""
