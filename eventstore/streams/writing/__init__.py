"""How do events get into streams, or into the log alone? May import boundaries, inline rows and what is below them."""
