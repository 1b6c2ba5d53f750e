"""How fast changes come from Postgres into the log: decoding, capture, loads, latency, bytes a change."""
