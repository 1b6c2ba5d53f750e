"""Expressions: operators, calls, arrays, rows, JSON."""
