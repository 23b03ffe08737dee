"""What is taken over in a trainer, and given back."""

import pytest
import transformers
from peft import LoraConfig
from weightwire.errors import CompatibilityError, ConfigurationError
from weightwire_trl import WeightTransfer
from weightwire_trl.binding import Binding

LORA = LoraConfig(r=4, target_modules=["q_proj"])
NOWHERE = "http://127.0.0.1:9"


def test_a_trainer_without_the_seam_is_refused_and_the_callback_is_named(tiny_checkpoint, tmp_path):
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint)
    trainer = transformers.Trainer(model=model, args=arguments)
    with pytest.raises(CompatibilityError, match="WeightTransferCallback"):
        WeightTransfer(NOWHERE).bind(trainer)


def test_a_trainer_that_was_given_another_transfer_is_refused(grpo):
    trainer, _ = grpo(NOWHERE, bind=False, peft_config=LORA)
    callbacks = list(trainer.callback_handler.callbacks)
    with pytest.raises(ConfigurationError, match="weight_transfer=transfer"):
        WeightTransfer(NOWHERE).bind(trainer)
    assert trainer.callback_handler.callbacks == callbacks
    assert "merge_adapter" not in vars(trainer.model), "a trainer that was refused is left as it was"


def test_binding_returns_the_transfer(grpo):
    trainer, transfer = grpo(NOWHERE, bind=False)
    assert transfer.bind(trainer) is transfer


def test_the_sender_keeps_trls_stream(grpo):
    trainer, _ = grpo(NOWHERE)
    assert "_streaming_iter" not in vars(trainer)


def test_another_rank_pushes_where_trl_would_have_it_run_the_stream(grpo, monkeypatch):
    trainer, _ = grpo(NOWHERE, bind=False)
    monkeypatch.setattr(trainer, "is_world_process_zero", lambda: False)
    pushes = []
    binding = Binding(
        trainer,
        join=lambda: pushes.append("join"),
        follow=lambda: pushes.append("push"),
        leave=lambda: pushes.append("leave"),
    )
    binding.take_over()
    assert trainer.callback_handler.callbacks[0] is binding, "TRL's own would make this rank wait in a barrier"
    binding.on_train_begin()
    assert (list(trainer._streaming_iter()), pushes) == ([], ["join", "push"])
    binding.give_back()
    names = [name for name, _ in trainer._streaming_iter()]
    assert names == [name for name, _ in trainer.model.named_parameters()]


def test_adapters_are_left_where_they_are_until_it_is_given_back(grpo):
    trainer, transfer = grpo(NOWHERE, peft_config=LORA)
    layer = trainer.model.base_model.model.model.layers[0].self_attn.q_proj
    trainer.model.merge_adapter()
    assert not layer.merged
    transfer.destroy()
    trainer.model.merge_adapter()
    assert layer.merged


def test_destroying_twice_is_fine(grpo):
    _, transfer = grpo(NOWHERE, peft_config=LORA)
    transfer.destroy()
    transfer.destroy()
