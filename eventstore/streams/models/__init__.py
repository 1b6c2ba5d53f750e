"""As which model is an event stored, and how do today's models read what earlier ones wrote?

May import the streams' rows, disclosure and errors.
"""
