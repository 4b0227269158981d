"""AMQP 0-9-1 as RabbitMQ speaks it, on an asyncio.Protocol (docs/amqp.md)."""
