"""Which Kafka topics belong to a source, to which topics of the log do they lead, and what is said of their columns?

May import: policy, and eventstore's model, settings, errors and client of Kafka.
"""
