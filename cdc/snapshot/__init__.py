"""How do the rows that a table has today get into the log, beside its stream?"""
