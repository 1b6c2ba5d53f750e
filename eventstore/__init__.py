"""What is the log, and how is it written, read, followed and kept in order?

``store.Store`` puts the rooms together. They may import only rooms below them (``make lint`` has their order), and of
the other packages ``migrations`` alone.
"""
