"""How do records and the position behind them become visible in Kafka at once?

May import kafka-python, and the publishing room's formats and positions.
"""
