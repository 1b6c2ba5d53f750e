"""SELECT, FROM and what holds them together."""
