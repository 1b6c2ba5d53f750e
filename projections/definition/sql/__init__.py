"""Projections as ``.sql`` files: a header that says what ``@projection`` says, and one SELECT over the inputs."""
