"""What is a projection, in Python or in SQL, and what is wrong with this one by itself?

Imports eventstore's model and the sinks' specifications; neither Spark nor the log's contents.
"""
