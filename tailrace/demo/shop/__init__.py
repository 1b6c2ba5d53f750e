"""The projections of the demo's shop, as a user's module: it is copied into the demo's folder.

Imports ``tailrace`` and PySpark, as any project would.
"""
