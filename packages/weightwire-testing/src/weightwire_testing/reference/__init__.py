"""The reference engine: a small inference server that speaks vLLM's weight-transfer protocol, failures included."""
