"""TRL's asynchronous trainers where there is no GPU: the ways round what stops them, and rollouts without a server.

Importing it does all of the former. Each says which release it is for, and goes with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import queue
import warnings

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.simplefilter("ignore")

from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, async_rollout_worker  # noqa: E402

torch.set_num_threads(1)
PACKING = "trl.experimental.async_grpo.packing"
PROMPTS = ("two plus two equals", "the quick brown fox", "weights move on", "a server")


class SdpaVarlen:
    """The one function of the hub's flash-attn3 kernel that tree attention calls (1.16), over SDPA."""

    @staticmethod
    def flash_attn_varlen_func(q, k, v, starts_q, starts_k, *_, softmax_scale=None, **__):
        out = []
        for i in range(len(starts_q) - 1):
            rows, columns = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
            a, b, c = (x.transpose(0, 1)[None] for x in (q[rows], k[columns], v[columns]))
            causal = torch.ones(a.shape[2], b.shape[2], dtype=torch.bool).tril(b.shape[2] - a.shape[2])
            attend = torch.nn.functional.scaled_dot_product_attention
            out.append(attend(a, b, c, attn_mask=causal, scale=softmax_scale, enable_gqa=True)[0].transpose(0, 1))
        return torch.cat(out)


def _without_gpu() -> None:
    if hasattr(async_grpo_trainer, "get_peak_flops_per_device"):  # 1.15 and 1.16 ask CUDA for the device's name
        async_grpo_trainer.get_peak_flops_per_device = lambda *_, **__: None
    if importlib.util.find_spec(PACKING):
        importlib.import_module(PACKING)._flash_attn = lambda: SdpaVarlen
    else:  # up to 1.15 the trainer asks for a kernel that needs CUDA by its name
        _with_sdpa()
    async_rollout_worker.is_vllm_available = lambda *_, **__: True  # the worker asks for it, and imports nothing of it


def _with_sdpa() -> None:
    name = "create_model_from_path" if hasattr(async_grpo_trainer, "create_model_from_path") else ""
    original = getattr(async_grpo_trainer, name) if name else AutoModelForCausalLM.from_pretrained

    def create(*args, **kwargs):
        return original(*args, **kwargs | {"attn_implementation": "sdpa"})

    if name:
        setattr(async_grpo_trainer, name, create)
    else:
        AutoModelForCausalLM.from_pretrained = create


_without_gpu()


class Rollouts:
    """A rollout worker in the trainer's own process, of random tokens: for TRL, no server has to generate."""

    def __init__(self, sample: type = async_rollout_worker.RolloutSample) -> None:
        self.sample = sample
        self.rollout_buffer: queue.Queue = queue.Queue()
        self.metrics_queue: queue.Queue = queue.Queue()
        self.versions: list[int] = []

    def start(self) -> None:
        self._fill(0)

    def stop(self) -> None:
        pass

    def check_health(self, *_: object) -> None:
        pass

    def update_model_version(self, version: int) -> None:
        self.versions.append(version)
        self._fill(version)

    def _fill(self, version: int) -> None:
        sample = self.sample
        random = np.random.default_rng(version)
        known = inspect.signature(sample).parameters
        for index in range(32):
            what = {
                "prompt": [{"role": "user", "content": "x"}],
                "completion": [{"role": "assistant", "content": "y"}],
                "input_ids": random.integers(4, 500, 24),
                "completion_mask": np.array([0] * 16 + [1] * 8),
                "old_log_probs": np.full(24, -6.0, dtype=np.float32),
                "advantage": float(random.normal()),
                "model_version": version,
                "group_id": version * 100 + index // 4,
                "metrics": {"reward": 0.0},
                "teacher_topk_ids": random.integers(4, 500, (24, 9)),
                "teacher_topk_logprobs": np.full((24, 9), -4.0, dtype=np.float32),
                "teacher_id": "default",
                "prompt_id": version * 100 + index,
                "enqueued_at": 0.0,
            }
            self.rollout_buffer.put(sample(**{name: value for name, value in what.items() if name in known}))


def tokenizer() -> PreTrainedTokenizerFast:
    """Of bytes, with a word for each other number of the tiny model's vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<|endoftext|>": 0, "<pad>": 3} | {letter: 4 + i for i, letter in enumerate(letters)}
    vocabulary |= {f"<{number}>": number for number in set(range(512)) - set(vocabulary.values())}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>", pad_token="<pad>")


def reward(completion_ids, **_):
    """More of odd tokens is better."""
    return [sum(token % 2 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def async_grpo(checkpoint, out, transfer, *, worker=None, settle=None, **more):
    """TRL's AsyncGRPOTrainer, as it runs here, three steps.

    Args:
        checkpoint: what is trained.
        out: where it may write.
        transfer: its ``weight_transfer``.
        worker: its ``rollout_worker``; None for random tokens.
        settle: given the arguments before the trainer is.
        **more: for the trainer.
    """
    wanted = {
        "output_dir": str(out), "max_steps": 3, "per_device_train_batch_size": 4, "num_generations": 4,
        "max_completion_length": 8, "weight_sync_steps": 1, "learning_rate": 1e-2,
        "logging_steps": 1, "report_to": [], "save_strategy": "no", "bf16": False, "use_cpu": True,
        "gradient_checkpointing": False, "token_budget": 256, "dtype": "float32", "max_staleness": 10,
    }  # fmt: skip
    known = inspect.signature(AsyncGRPOConfig).parameters
    arguments = AsyncGRPOConfig(**{name: value for name, value in wanted.items() if name in known})
    if settle is not None:
        settle(arguments)
    rows = [[{"role": "user", "content": text}] for text in PROMPTS]
    return AsyncGRPOTrainer(
        model=str(checkpoint),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": rows * 4}),
        processing_class=tokenizer(),
        weight_transfer=transfer,
        rollout_worker=worker or Rollouts(),
        **more,
    )
