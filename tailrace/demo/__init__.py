"""``tailrace demo``: the main job end to end on embedded servers, each step explained, measured and checked."""
