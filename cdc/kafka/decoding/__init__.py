"""What do Debezium's records mean: how do they become rows of the log? No broker, no catalog, no clock.

May import: the declaration and the result of the room above, columnar, kernels, policy, and eventstore's model.
"""
