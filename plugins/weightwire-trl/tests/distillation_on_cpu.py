"""TRL's AsyncDistillationTrainer (1.11 and later) where there is no GPU; see trl_on_cpu.py."""

from datasets import Dataset
from trl.experimental.async_distillation import (
    AsyncDistillationConfig,
    AsyncDistillationTrainer,
    async_distillation_trainer,
    async_rollout_worker,
)
from trl_on_cpu import PROMPTS, Rollouts, tokenizer

async_distillation_trainer.get_peak_flops_per_device = lambda *_, **__: None  # 1.15 and 1.16 ask CUDA


def async_distillation(checkpoint, out, transfer, url):
    """The trainer, three steps; it asks the server at *url* whether it is there, and learns from random preferences."""
    arguments = AsyncDistillationConfig(
        output_dir=str(out), max_steps=3, per_device_train_batch_size=4, max_completion_length=8, learning_rate=1e-2,
        report_to=[], save_strategy="no", bf16=False, use_cpu=True, gradient_checkpointing=False, max_staleness=10,
        logging_steps=1, vllm_server_base_url=url, teacher_server_urls={"default": url},
        model_init_kwargs={"attn_implementation": "sdpa", "dtype": "float32"},
    )  # fmt: skip
    return AsyncDistillationTrainer(
        model=str(checkpoint),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in PROMPTS * 4]}),
        processing_class=tokenizer(),
        weight_transfer=transfer,
        rollout_worker=Rollouts(async_rollout_worker.RolloutSample),
    )
