"""How do records get to a message broker over AMQP? The two versions are protocols of their own.

May import: pika or Proton, and the rooms around.
"""
