"""Which rows go by a topic's policy, and what is kept of them?"""
