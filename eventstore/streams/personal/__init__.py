"""How are a person's values in events kept so that they can be forgotten?

Each is encrypted with a key of whom it is about, before it is written; forgetting somebody is deleting the key. Imports
nothing of the streams.
"""
