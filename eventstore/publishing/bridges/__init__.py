"""How do records get to systems without transactions, at least once and in the order of their key?

``bridge.py`` says what a bridge to one system is; each has a file of its own, and ``open.py`` knows them.
``session.py`` publishes over any of them, with the position in our catalog (``kept.py``). May import what the bridge's
system needs, and the publishing room's core.
"""
