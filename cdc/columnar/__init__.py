"""How do whole transactions become one Arrow table a topic?

May import: kernels, wire, policy, and eventstore's model and state. Nothing here talks to a server.
"""
