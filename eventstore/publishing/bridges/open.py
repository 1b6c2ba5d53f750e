"""Which bridge a destination's settings mean. Each is imported at its first use, as it may need an extra."""

from __future__ import annotations

from tailrace.eventstore.publishing.bridges.bridge import Bridge
from tailrace.eventstore.settings import BridgeSettings


def open_bridge(settings: BridgeSettings) -> Bridge:
    """Raises TransientError when its system is out of reach, OperatorError when somebody has to act."""
    match settings.kind:
        case "webhook":
            from tailrace.eventstore.publishing.bridges.webhook import WebhookBridge

            return WebhookBridge(settings)
        case "redis":
            from tailrace.eventstore.publishing.bridges.redis_streams import RedisStreamsBridge

            return RedisStreamsBridge(settings)
        case "amqp":
            from tailrace.eventstore.publishing.bridges.amqp.amqp_0_9_1 import AmqpBridge

            return AmqpBridge(settings)
        case "amqp1":
            from tailrace.eventstore.publishing.bridges.amqp.amqp_1_0 import Amqp1Bridge

            return Amqp1Bridge(settings)
        case "nats":
            from tailrace.eventstore.publishing.bridges.nats import NatsBridge

            return NatsBridge(settings)
        case "sqs":
            from tailrace.eventstore.publishing.bridges.aws.sqs import SqsBridge

            return SqsBridge(settings)
        case "kinesis":
            from tailrace.eventstore.publishing.bridges.aws.kinesis import KinesisBridge

            return KinesisBridge(settings)
        case "own":
            from tailrace.eventstore.publishing.bridges.own import open_own

            return open_own(settings)
