"""Weightwire for DeepSpeed: engines of ZeRO stage 0 to 3, offloaded or not."""
