"""Amazon SQS as AWS's SDKs speak it, on the HTTP port (docs/sqs.md). api.py is its entrance."""
