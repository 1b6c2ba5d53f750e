"""Which tables and columns may be written, and in which form? Pure."""
