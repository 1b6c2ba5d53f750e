"""Is the log what was written? ``verify`` looks; ``findings`` says what is wrong."""
