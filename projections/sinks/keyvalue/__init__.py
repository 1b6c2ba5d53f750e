"""Rows in a user's own key-value store: the sink and its reader."""
