"""Log and source differ: what separates them, and the corrections that end it."""
