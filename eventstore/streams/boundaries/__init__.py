"""Which events does a decision across streams depend on, and what if there are more by the time it is written?

A dynamic consistency boundary, as https://dcb.events has it, by heads of tags. May import models, loads and the rows of
streams.
"""
