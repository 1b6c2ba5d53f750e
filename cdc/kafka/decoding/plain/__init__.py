"""Records of a producer of one's own, JSON of declared columns: which rows are they?

May import: what decoding of Debezium's records shares.
"""
