"""Rows that follow a stream in the transaction of its events: what declares them, applies events, and proves them."""
