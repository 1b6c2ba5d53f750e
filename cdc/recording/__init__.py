"""What capture received, in a file."""
