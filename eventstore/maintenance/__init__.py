"""What keeps the log in order: how do files become fewer, which rows go by policy, how are values erased, how does a
store move? Readers see no difference except where rows go or values are erased.

May import every room of eventstore but ``store``.
"""
