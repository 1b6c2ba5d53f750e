"""How is the catalog's database reached, what tables has it, and who holds a lease, a term or a request in it?

May import: model, disclosure, failpoints, errors, settings, and ``migrations``.
"""
