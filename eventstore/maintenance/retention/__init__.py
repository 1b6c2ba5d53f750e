"""Which rows go by a topic's policy, who still needs them, and what is archived before they go?

May import state_runs, files, and the rooms below maintenance.
"""
