"""Orders that are paid in time, or cancelled: two deciders, the process between them, and their tests."""
