"""How is Spark started, where do its tasks run, and what does one of its errors mean to the user?

Imports definition, for the places that messages name; pyspark is imported when a session is opened.
"""
