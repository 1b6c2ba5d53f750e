"""Which commands are used every day: init, doctor, capture, status, plan, run, rebuild, verify, replay, demo?

May import the rooms of the nouns beside it; no noun imports a daily verb.
"""
