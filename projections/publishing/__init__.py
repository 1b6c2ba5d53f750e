"""What does the result of a projection look like to those who follow it in another system, and what changed since?

May import: generations, sinks, and eventstore with its publishing.
"""
