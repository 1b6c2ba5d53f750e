"""What will be captured, what stands in the way, and may log and server go on together?

May import: snapshot, topics, columnar, postgres and the rooms below.
"""
