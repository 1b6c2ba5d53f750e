"""What Prometheus sees: one collector for captures, one for a runner of projections, one for publishers."""

LABELS = {
    "cause": "Why a full refresh was full; empty for an incremental one.",
    "error": "Class of the error.",
    "kind": "How the refresh was computed: full or incremental.",
    "partition": "Number of the partition.",
    "projection": "Name of the projection.",
    "publication": "Name of the publication in the configuration.",
    "rung": "Where the position is. Of a source: head, sent, received, durable. Of a projection: derived (its result"
    " in the log), sink.",
    "size": "Size tier of the files: full, or what they stay below.",
    "source": "Name of the source in the configuration.",
    "topic": "Name of the topic in Kafka.",
    "status": "failed, or waiting for a topic to be loaded.",
}
"""What each label of a metric says."""
