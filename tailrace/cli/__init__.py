"""The command line; ``main.run`` is the console script."""
