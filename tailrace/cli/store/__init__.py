"""``tailrace store``: the log as a whole: upkeep, backup, moving it, upgrading its tables.

May import the ground and what all commands share.
"""
