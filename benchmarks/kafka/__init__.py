"""How fast are records of Kafka read and written?"""
