"""Which engine computes a step, and is another than Spark proved to give the same rows?"""
