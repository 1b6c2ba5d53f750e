"""The starter of embedded servers."""
