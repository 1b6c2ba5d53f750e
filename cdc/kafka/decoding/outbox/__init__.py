"""Records of Debezium's outbox event router: which domain events are they?

May import: what decoding of Debezium's records shares.
"""
