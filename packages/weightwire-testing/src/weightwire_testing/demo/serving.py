"""Starts the engine that the demo pushes into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weightwire.errors import ConfigurationError

from weightwire_testing import environments
from weightwire_testing.reference.launcher import ReferenceEngine
from weightwire_testing.reference.settings import EngineSettings
from weightwire_testing.servers import Setup, VllmServer
from weightwire_testing.uv import Step

REFERENCE = "reference"
VLLM = "vllm"

Say = Callable[[str], None]


@contextmanager
def serve(engine: str, checkpoint: Path, *, say: Say) -> Iterator[str]:
    """Serve *checkpoint* for the length of a ``with`` block, on loopback.

    Args:
        engine: ``reference``, or ``vllm==X``.
        checkpoint: the weights to begin with.
        say: told what is being waited for.

    Yields:
        The engine's base URL.

    Raises:
        ConfigurationError: there is no such engine, or it did not start; says why.
    """
    product, _, release = engine.partition("==")
    if engine == REFERENCE:
        say("starting the embedded engine")
        with ReferenceEngine(EngineSettings(checkpoint=str(checkpoint))) as running:
            yield running.url
    elif product == VLLM and release:
        environment = environments.ensure(release, on_progress=lambda step: say(_told(step)))
        say(f"starting vLLM {release} on this machine's CPU, which takes half a minute or more")
        setup = Setup(arguments=("--skip-tokenizer-init",))
        with VllmServer(environment, checkpoint, setup=setup) as server:
            yield server.url
    else:
        raise ConfigurationError(
            f"There is no engine {engine!r}; `{REFERENCE}` or a release of vLLM is expected.",
            hint=f"weightwire demo --engine vllm=={environments.known()[-1]}",
        )


def _told(step: Step) -> str:
    return step.text if step.fraction is None else f"{step.text} ({step.fraction:.0%} of the downloads so far)"
