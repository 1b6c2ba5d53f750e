"""A query as two: a stage of partial results that changes are followed into by key, and the query over these."""
