"""What the rows of the catalog say: topics, epochs, segments, state runs, generations."""
