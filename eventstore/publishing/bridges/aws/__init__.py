"""How do records get to queues and streams of Amazon?

May import: boto3, and the rooms around.
"""
