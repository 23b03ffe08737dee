"""Weightwire's control plane for vLLM 0.17 to 0.20: two-call weight transfer over HTTP."""
