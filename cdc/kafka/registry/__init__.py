"""Which schema has the record's number? Asks a schema registry, and remembers.

May import: the Avro schemas of decoding, and eventstore's settings and errors.
"""
