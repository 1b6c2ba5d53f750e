"""What do records in Avro hold, and which values of them are wanted? As Connect's Avro converter writes them.

May import: the paths of the room above, kernels, and eventstore's errors. The values then are what they would be in
Connect's JSON with its schema (``tailrace.cdc.kafka.decoding.json_values``).
"""
