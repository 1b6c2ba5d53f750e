"""``tailrace projection``: generations of projections, and what the daily verbs share about projections.

May import the projections and what all commands share; Spark starts only where rows are computed.
"""
