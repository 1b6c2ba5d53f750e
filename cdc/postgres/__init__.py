"""What does the source say, and how is it asked? Connections, slots, publications, tables, the stream's bytes.

Other rooms send queries of their own through connections from here. May import: kernels, wire, policy, status, and
eventstore's model, settings and errors.
"""
