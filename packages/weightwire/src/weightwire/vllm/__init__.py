"""What every control plane for vLLM shares, whatever wire form it speaks.

A control plane of one wire form is a distribution of its own (weightwire-vllm, weightwire-vllm-legacy), and those never
import each other. What is the same in all releases lives here: finding out what a server is and how it stands, the
calls that no release changed, what is said to our own engine, how answers are read, and the table of what changed
from which release on. Nothing in the rest of the core imports it.
"""
