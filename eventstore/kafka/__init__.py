"""How do record batches come from a Kafka broker, and go to one?

May import: kafka-python, crc32c, cramjam, numba, and eventstore's settings, model, compiler and errors. What is private
in kafka-python is named in ``seams.py`` alone.
"""
