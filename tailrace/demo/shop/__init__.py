"""A small shop: the example that the documentation, the demo and the tests share."""
