"""The catalog's database: connection, tables, formats, roles, leases, terms and requests."""
