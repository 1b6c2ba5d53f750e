"""``tailrace demo``: the main job end to end on embedded servers, each step explained, measured and checked.

May import every room but the command line, which it runs as a user does: as processes.
"""
