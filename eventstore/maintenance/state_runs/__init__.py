"""When is compacted state written beside the rows, and how?"""
