"""What do the catalog's rows say: topics, epochs, segments, state runs, quarantine, generations?

One module a kind of row. May import segment, catalog, storage and what is below them.
"""
