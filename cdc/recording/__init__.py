"""What did capture receive, in a file?

May import: topics, columnar, wire, policy, status.
"""
