"""What is kept of a record that cannot be read?

May import: eventstore's model, settings, publishing and client of Kafka.
"""
