"""From the socket to a committed epoch: receive, assemble, append, confirm."""
