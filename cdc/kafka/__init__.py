"""How does a Kafka topic with Debezium's envelopes get into the log?

What records mean is decided without a broker (``decoding``); so is what becomes of them (``epochs``, ``repeats``).
``capture`` is the loop, ``session`` reads from a cluster.

May import: setup, columnar, postgres, kernels, policy, status, backoff, and eventstore.
"""
