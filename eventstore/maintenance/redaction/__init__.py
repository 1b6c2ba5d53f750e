"""How are values erased from the log, and where do copies remain?

May import retention, state_runs, files, and the rooms below maintenance.
"""
