"""How are values erased from the log, and where do copies remain?"""
