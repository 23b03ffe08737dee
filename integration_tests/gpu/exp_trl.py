"""TRL's AsyncGRPOTrainer on GPU 0, its weights into a stock server through ``weightwire_trl``, three steps.

``python exp_trl.py CONTEXT.json SERVER``, with TRL 1.16 importable. The rollouts are the server's own: after each push
it is asked for completions, so TRL's importance ratio in the first step says whether the server samples from the
trainer's weights. They are asked for in the trainer's process, since TRL's own worker needs a chat model.
"""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # before torch: a Trainer puts a replica on every GPU that it sees

import importlib.util
import os
import queue
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import requests
import torch
from gpu_context import Context, Results, main
from gpu_models import SHAPES, fill, off, shaped_model, tokenizer
from gpu_sessions import CLOSE

STEPS = 3
PROMPTS, EACH = 8, 4  # completions of a prompt make a group
PROMPT_TOKENS, TOKENS = 16, 8
TOLD = ("step", "loss", "ratio", "kl", "grad_norm", "perf/weight_sync_s", "perf/step_s", "sample/staleness_mean")
SHAPE = {"cuda": "0.6b", "cpu": "small"}


class Attention:
    """The one function of the hub's flash-attn3 kernel that TRL's tree attention calls (1.16): no hub here."""

    @staticmethod
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *_: object, softmax_scale: Any = None, **__: object
    ) -> Any:
        """Causal attention over sequences that lie one behind the other."""
        out = []
        for number in range(len(starts_q) - 1):
            rows, columns = (
                slice(*starts_q[number : number + 2].tolist()),
                slice(*starts_k[number : number + 2].tolist()),
            )
            a, b, c = (part.transpose(0, 1)[None] for part in (q[rows], k[columns], v[columns]))
            causal = torch.ones(a.shape[2], b.shape[2], dtype=torch.bool, device=a.device).tril(b.shape[2] - a.shape[2])
            attend = torch.nn.functional.scaled_dot_product_attention
            out.append(attend(a, b, c, attn_mask=causal, scale=softmax_scale, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(out)


class Rollouts:
    """A rollout worker in the trainer's process; the server generates."""

    def __init__(self, url: str) -> None:
        """Ask for nothing yet."""
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.seconds: list[float] = []
        self._url = url

    def start(self) -> None:
        """The first weights are there."""
        self.update_model_version(0)

    def stop(self) -> None:
        """Nothing runs."""

    def check_health(self, *_: object) -> None:
        """Nothing runs."""

    def update_model_version(self, version: int) -> None:
        """Newer weights are there: sample from them."""
        began = time.monotonic()
        for sample in self._samples(version):
            self.rollout_buffer.put(sample)
        self.seconds.append(time.monotonic() - began)

    def _samples(self, version: int) -> Iterator[Any]:
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: PLC0415

        dice = np.random.default_rng(version)
        for group in range(PROMPTS):
            prompt = dice.integers(4, 500, PROMPT_TOKENS).tolist()
            for tokens, logprobs in self._completions(prompt, seed=version * PROMPTS + group):
                yield RolloutSample(
                    prompt=[{"role": "user", "content": "x"}],
                    completion=[{"role": "assistant", "content": "y"}],
                    input_ids=np.array(prompt + tokens),
                    completion_mask=np.array([0] * len(prompt) + [1] * len(tokens)),
                    old_log_probs=np.array([0.0] * len(prompt) + logprobs, dtype=np.float32),
                    advantage=float(dice.normal()),
                    model_version=version,
                    group_id=version * PROMPTS + group,
                    metrics={"reward": 0.0},
                    enqueued_at=time.time(),
                )

    def _completions(self, prompt: list[int], *, seed: int) -> Iterator[tuple[list[int], list[float]]]:
        body = {"prompt": prompt, "n": EACH, "max_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True}
        body |= {"logprobs": 0, "return_tokens_as_token_ids": True, "seed": seed}
        reply = requests.post(f"{self._url}/v1/completions", json=body, timeout=60.0)
        reply.raise_for_status()
        for choice in reply.json()["choices"]:
            tokens = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
            yield tokens, choice["logprobs"]["token_logprobs"]


def trl(context: Context, results: Results) -> None:
    """Train, and hold the server to what the trainer has in the end."""
    if any(importlib.util.find_spec(name) is None for name in ("trl", "datasets", "weightwire_trl")):
        results.tell("TRL, datasets or weightwire_trl is not importable here: not run")
        return
    from weightwire_trl import WeightTransfer  # noqa: PLC0415

    url = context.servers[sys.argv[2]].url
    with tempfile.TemporaryDirectory() as folder:
        before = start(Path(folder) / "start", SHAPE[context.device], context.device)
        transfer, rollouts = WeightTransfer(url, {"timeout": 60.0, **context.options}), Rollouts(url)
        trainer = trainer_of(Path(folder), context, transfer, rollouts)
        bind = getattr(transfer, "bind", None)
        if bind is not None:
            bind(trainer)
        began = time.monotonic()
        trainer.train()
        results.tell(f"{STEPS} steps", seconds=time.monotonic() - began, rollouts=rollouts.seconds)
    for row in trainer.state.log_history:
        results.tell("a step", **{key.rpartition("/")[2]: row[key] for key in TOLD if key in row})
    before.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())
    found = off(url, before)
    results.tell("after training the server holds the trainer's weights", ok=found < CLOSE, apart=found)


def start(directory: Path, shape: str, device: str) -> Any:
    """A model that TRL begins with, as a checkpoint and for comparison."""
    model = shaped_model(shape, device)
    fill(model.parameters(), 5)
    model.save_pretrained(directory)
    tokenizer(SHAPES[shape]["vocab_size"]).save_pretrained(directory)
    return model


def trainer_of(folder: Path, context: Context, transfer: Any, rollouts: Rollouts) -> Any:
    """TRL's trainer, as it runs without the hub."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset  # noqa: PLC0415
    from transformers import AutoTokenizer  # noqa: PLC0415
    from trl.experimental import async_grpo  # noqa: PLC0415
    from trl.experimental.async_grpo import async_grpo_trainer, packing  # noqa: PLC0415

    packing._flash_attn = lambda: Attention  # TRL offers no other way
    async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: None
    settings = async_grpo.AsyncGRPOConfig(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        num_generations=EACH,
        max_completion_length=TOKENS,
        weight_sync_steps=1,
        vllm_server_base_url=context.servers[sys.argv[2]].url,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        bf16=False,
        use_cpu=not context.cuda,
        gradient_checkpointing=False,
        token_budget=256,
        dtype="bfloat16",
        max_staleness=10,
    )
    return async_grpo.AsyncGRPOTrainer(
        model=str(folder / "start"),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "t5"}]] * 16}),
        processing_class=AutoTokenizer.from_pretrained(folder / "start"),
        weight_transfer=transfer,
        rollout_worker=rollouts,
    )


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Never asked: advantages come with the rollouts."""
    return [0.0] * len(completion_ids)


if __name__ == "__main__":
    main("trl", trl)
