"""Weightwire for FSDP2: models wrapped with ``fully_shard``, and any other model with DTensors in it."""
