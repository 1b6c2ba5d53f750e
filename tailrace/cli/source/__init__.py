"""``tailrace source``: the databases that are captured, and work on their tables that the running capture does.

May import capture, the ground and what all commands share.
"""
