"""Where a projection's rows are served: one room a system (how rows lie there, a sink, a reader) and what they share.

``contract`` and ``reader`` say what a sink and a reader must do, ``open`` alone knows the systems. Imports eventstore
and no other room of projections; ``reader``, ``open`` and each system's ``reader`` import no Spark.
"""
