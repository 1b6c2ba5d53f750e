"""A query in Postgres' SQL as Spark's SQL of the same meaning, or refused at its place. Pure: knows no Spark.

Only what is in a table passes. Functions and aggregates are rows of ``functions/`` (``functions/table.py`` says how one
is added), casts are rows of ``types/casts.py``, operators are in ``expressions/operators.py``. Each kind of node has
its way in ``expressions/expressions.py`` or in ``queries/``. Everything else is refused where it is written.

The result is text, one expression a line: ``SourceMap`` leads from the lines back to the author's text.
"""
