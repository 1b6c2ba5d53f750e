"""What does a user type, and what is printed? One room a noun; the daily verbs are in ``daily``.

May import every room of ``tailrace``. A command parses, calls the room below and prints; nothing imports this one.
"""
