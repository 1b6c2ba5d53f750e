"""How does a value in a record become the text that Postgres has for it?

May import: the fields and declarations of the room above, kernels, and eventstore's model and errors. The texts then
become typed columns as everywhere (``tailrace.cdc.columnar.values``).
"""
