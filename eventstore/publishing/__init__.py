"""How do rows of the log get to other systems, each once and in the order of its key?

``publisher.py`` goes on from the position that the destination keeps; ``formats/`` make records of rows; ``kafka/`` is
a destination with transactions, ``bridges/`` are those without. May import what subscriptions may, and subscriptions.
"""
