"""The callback, in trainers of Transformers' and TRL's."""

import pytest
import torch
import transformers
import trl
import weightwire
from datasets import Dataset
from peft import LoraConfig
from trl_on_cpu import tokenizer
from weightwire.errors import ConfigurationError, UpdateFailed
from weightwire.states import EngineState
from weightwire_trl import WeightTransferCallback

TEXTS = ["two plus two equals four and three plus three equals six", "the quick brown fox jumps over the lazy dog"]
OPTIONS = {"timeout": 30, "bucket_bytes": 100_000}


@pytest.fixture
def sft(tiny_checkpoint, tmp_path):
    """Makes TRL's SFTTrainer, three steps."""

    def make(peft_config=None, **more):
        arguments = {
            "output_dir": str(tmp_path), "max_steps": 3, "per_device_train_batch_size": 2, "report_to": [],
            "save_strategy": "no", "bf16": False, "use_cpu": True, "logging_steps": 1, "learning_rate": 1e-2,
            "gradient_checkpointing": False, "max_length": 32, "model_init_kwargs": {"dtype": "float32"}, **more,
        }  # fmt: skip
        rows = Dataset.from_dict({"text": TEXTS * 8})
        return trl.SFTTrainer(
            model=str(tiny_checkpoint), args=trl.SFTConfig(**arguments), train_dataset=rows, eval_dataset=rows,
            processing_class=tokenizer(), peft_config=peft_config,
        )  # fmt: skip

    return make


def pushed(trainer):
    """The steps after which there was a push."""
    return [record["step"] for record in trainer.state.log_history if "weightwire/total_s" in record]


def with_callback(trainer, url, **more):
    callback = WeightTransferCallback(trainer, url, OPTIONS, **more)
    trainer.add_callback(callback)
    return callback


def test_it_pushes_at_the_start_and_after_every_step(sft, reference_engine, served):
    url, trainer = reference_engine().url, sft()
    callback = with_callback(trainer, url)
    trainer.train()
    assert served(url, trainer.model)
    assert pushed(trainer) == [0, 1, 2, 3]
    assert weightwire.inspect(url).weight_version == callback.receipt.version == "3"


def test_it_pushes_every_so_many_steps_and_at_the_end(sft, reference_engine, served):
    url, trainer = reference_engine().url, sft()
    with_callback(trainer, url, every=2)
    trainer.train()
    assert pushed(trainer) == [0, 2, 3]
    assert served(url, trainer.model)


@pytest.mark.parametrize(("how", "steps"), [({"eval_steps": 1}, [0, 1, 2, 3]), ({"eval_strategy": "epoch"}, [0, 3])])
def test_it_pushes_before_an_evaluation(how, steps, sft, reference_engine, monkeypatch):
    url = reference_engine().url
    trainer = sft(**{"eval_strategy": "steps", "per_device_eval_batch_size": 8, **how})
    with_callback(trainer, url, every=100)
    seen = []
    evaluate = trainer.evaluate
    monkeypatch.setattr(
        trainer, "evaluate", lambda *a, **k: seen.append(weightwire.inspect(url).weight_version) or evaluate(*a, **k)
    )
    trainer.train()
    assert pushed(trainer) == steps
    assert seen == [str(step) for step in steps[1:]]


def test_the_records_of_the_trainer_are_left_alone(sft, reference_engine):
    trainer = sft()
    with_callback(trainer, reference_engine().url)
    trainer.train()
    losses = [record for record in trainer.state.log_history if "loss" in record]
    assert [record["step"] for record in losses] == [1, 2, 3]
    assert all("mean_token_accuracy" in record for record in losses)


def test_the_best_checkpoint_is_pushed_if_that_is_what_training_ends_with(sft, reference_engine, served):
    url = reference_engine().url
    trainer = sft(
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1, load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,
    )  # fmt: skip
    with_callback(trainer, url)
    trainer.train()
    assert trainer.state.best_global_step == 1
    assert pushed(trainer) == [0, 1, 2, 3, 3]
    assert served(url, trainer.model)


def test_adapters_are_merged_beside_the_model(sft, reference_engine, served):
    url = reference_engine().url
    trainer = sft(peft_config=LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
    frozen = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    with_callback(trainer, url)
    trainer.train()
    assert served(url, trainer.model)
    assert all(p.equal(frozen[name]) for name, p in trainer.model.named_parameters() if name in frozen)


def test_a_push_that_fails_ends_training_and_the_next_training_mends_the_engine(sft, reference_engine, served):
    engine = reference_engine()
    trainer = sft()
    with_callback(trainer, engine.url)
    engine.set_faults("receive:refuse=boom@30")
    with pytest.raises(UpdateFailed, match="boom"):
        trainer.train()
    found = weightwire.inspect(engine.url)
    assert (found.state, found.paused) == (EngineState.TORN, True)
    engine.set_faults()
    trainer.train()
    assert served(engine.url, trainer.model)


@pytest.mark.parametrize("every", [0, -1, 1.5, 2.0, True, "2", None])
def test_it_refuses_to_push_every_so_many_steps_that_are_none(every, sft):
    with pytest.raises(ConfigurationError, match="is no number of steps") as caught:
        WeightTransferCallback(object(), "http://127.0.0.1:9", every=every)
    assert "every=1" in caught.value.hint


def twice_the_same(trainer, url):
    callback = with_callback(trainer, url)
    trainer.add_callback(callback)


def two_of_them(trainer, url):
    with_callback(trainer, url)
    with_callback(trainer, url.replace("127.0.0.1", "localhost"))


@pytest.mark.parametrize("add", [twice_the_same, two_of_them])
def test_it_refuses_to_push_to_an_engine_twice_before_it_pushes(add, sft):
    trainer = sft()
    add(trainer, "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="has 2 of these callbacks"):
        trainer.train()


def test_two_of_them_push_to_two_engines(sft, reference_engine, served):
    urls, trainer = [reference_engine().url for _ in range(2)], sft()
    for url in urls:
        with_callback(trainer, url)
    trainer.train()
    assert all(served(url, trainer.model) for url in urls)


def test_a_second_training_counts_its_steps_anew_and_so_its_versions(sft, reference_engine, served):
    url, trainer = reference_engine().url, sft()
    callback = with_callback(trainer, url, every=100)
    rounds = []
    for _ in range(2):
        trainer.train()
        assert served(url, trainer.model)
        assert pushed(trainer) == [0, 3]
        assert weightwire.inspect(url).weight_version == callback.receipt.version == "3"
        rounds.append(callback.receipt.round_id)
    assert len(set(rounds)) == 2


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.arange(index, index + 12)
        return {"input_ids": ids, "labels": ids}


def test_a_trainer_of_transformers_alone_will_do(tiny_checkpoint, tmp_path, reference_engine, served):
    url = reference_engine().url
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, report_to=[], use_cpu=True, learning_rate=1e-2, save_strategy="no"
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_checkpoint, dtype=torch.float32)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Rows())
    with_callback(trainer, url)
    trainer.train()
    assert pushed(trainer) == [0, 1, 2]
    assert served(url, trainer.model)


def test_a_session_takes_a_trainer_as_it_takes_a_model(sft, reference_engine, served):
    url, trainer = reference_engine().url, sft()
    trainer.train()
    with weightwire.connect(url, trainer, OPTIONS) as session:
        session.push(version="mine")
    assert served(url, trainer.model)


def test_a_callback_that_was_made_for_another_trainer_is_refused_before_it_pushes(sft):
    trainer, other = sft(), sft()
    trainer.add_callback(WeightTransferCallback(other, "http://127.0.0.1:9", OPTIONS))
    with pytest.raises(ConfigurationError, match="another trainer"):
        trainer.train()
