"""RabbitMQ's management HTTP API, under /api on the HTTP port (docs/management-api.md)."""
