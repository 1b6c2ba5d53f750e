"""What do the bytes of the replication protocol mean, and how are they written? Values only.

No socket, driver, clock or thread. May import: eventstore's errors and model.
"""
