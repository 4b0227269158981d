"""Attacks that once succeeded, kept as tests: bounded in count and time, on loopback only (docs/security.md)."""
