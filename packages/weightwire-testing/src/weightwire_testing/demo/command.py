"""``weightwire demo``: what is typed, and what is said at the end. Quick to import: torch comes with the first step."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.text import Text
from weightwire.cli.commands import command
from weightwire.cli.screen import Screen
from weightwire.errors import ConfigurationError
from weightwire.options import Options

from weightwire_testing.demo.records import Demonstration, Plan, Round


class DemoFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What to play.

    Attributes:
        engine: What to push into: the embedded engine (reference), or a real vLLM such as vllm==0.32.0, on this
            machine's CPU, in an environment of its own that is made on first use.
        steps: Training steps.
        every: Training steps between two pushes.
    """

    engine: str = "reference"
    steps: int = 72
    every: int = 9


@command
def demo(screen: Screen, *, how: DemoFlags, options: Options) -> None:
    """Train a small model while an engine serves it, and check after every push that the engine holds what was sent."""
    began = time.monotonic()
    if min(how.steps, how.every) < 1:
        raise ConfigurationError(f"--steps is {how.steps} and --every {how.every}; both must be at least 1.")
    rounds = _play(screen, how, options)
    largest = max(done.after for done in rounds)
    played = Demonstration(
        engine=how.engine,
        steps=how.steps,
        rounds=rounds,
        largest_difference=largest,
        seconds=time.monotonic() - began,
    )
    screen.show(played, Text(f"{len(rounds)} pushes in {played.seconds:.0f} s"), Text(_verdict(largest)))


def _verdict(largest: float) -> str:
    return f"served = trained: max |Δ log p| = {largest:.1e}"


def _play(screen: Screen, how: DemoFlags, options: Options) -> list[Round]:
    import torch  # noqa: PLC0415 - seconds; `demo --help` does without

    from weightwire_testing.demo import play, serving, showing, text, training  # noqa: PLC0415
    from weightwire_testing.model import save_checkpoint  # noqa: PLC0415

    # A model this small is trained fastest by one thread, and on a busy machine several wait for one another.
    torch.set_num_threads(1)
    trainer = training.Trainer(text.trained(), steps=how.steps)
    plan = Plan(steps=how.steps, every=how.every)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightwire-demo-")))
        checkpoint = save_checkpoint(trainer.model, scratch)
        with showing.waiting(screen) as say:
            url = stack.enter_context(serving.serve(how.engine, checkpoint, say=say))
        show = stack.enter_context(showing.on(screen))
        return play.play(url, trainer, plan=plan, options=options, show=show)
