"""What is a topic, a column, a key, a partition, a position, an epoch?

Values only: no file, no database, no clock. May import errors.
"""
