"""What does a command do to a stream: which events does it lead to, from the state that the earlier ones led to?

May import the streams' other modules.
"""
