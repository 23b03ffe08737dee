"""The reference engine: a small inference server that speaks vLLM's weight-transfer protocol, failures included.

In Python::

    with ReferenceEngine(EngineSettings(checkpoint=str(directory), version="0.28.0")) as engine:
        weightwire.connect(engine.url, model).push(version=1)
        assert engine.fingerprint() == fingerprint(model.checkpoint_tensors())

On the command line: ``python -m weightwire_testing.reference --checkpoint DIRECTORY --version 0.28.0``.

It behaves as vLLM does where that matters to a client: routes, payloads, status codes and words by release; a
reload that counts elements; an engine core that a silent sender blocks; a forward pass on half-loaded weights that
kills the process; executor replies that get out of step. It differs in that nothing waits for ever unless it is told
to (``timeout``), and in four switches: ``/_reset``, ``/_faults``, ``/_calls`` and ``/_weights``.
"""

from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.reports import Called, Holding
from weightwire_testing.reference.settings import Backend, EngineSettings

__all__ = ["Backend", "Called", "EngineSettings", "Holding", "ReferenceEngine"]
