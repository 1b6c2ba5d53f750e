"""What is the latest row per key, in the newest version of the schema?"""
