"""TRL's own AsyncGRPOTrainer pushes into an engine, and fails as it should. A rollout takes no server here."""

import inspect
import sys
import time

import pytest
import torch
import weightwire
from distillation_on_cpu import async_distillation
from peft import LoraConfig
from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol
from weightwire.errors import EngineUnreachable, ManifestError, StateError, UpdateFailed
from weightwire.states import EngineState
from weightwire_testing.reference import EngineSettings
from weightwire_trl import WeightTransfer

STEPS = 3
OPTIONS = {"timeout": 30, "bucket_bytes": 100_000}


def versions(trainer):
    """The steps after which the trainer's log has a push."""
    return [record["step"] for record in trainer.state.log_history if "weightwire/total_s" in record]


def standing(url):
    found = weightwire.inspect(url)
    return found.state, found.paused


def test_it_has_the_methods_that_trl_calls():
    wanted = {
        name: inspect.signature(m).parameters for name, m in vars(WeightTransferProtocol).items() if name[0] != "_"
    }
    assert len(wanted) == 5
    for name, parameters in wanted.items():
        assert list(inspect.signature(getattr(WeightTransfer, name)).parameters) == list(parameters)


def test_what_is_served_is_what_was_trained(grpo, reference_engine, served):
    url = reference_engine().url
    trainer, transfer = grpo(url)
    trainer.train()
    assert served(url, trainer.model)
    assert weightwire.inspect(url).weight_version == transfer.receipt.version == str(STEPS)
    assert versions(trainer) == [0, 1, 2, 3]
    assert trainer.rollout_worker.versions == [1, 2, 3, 4]
    assert "vllm" not in sys.modules


def test_trls_own_records_are_left_alone(grpo, reference_engine):
    trainer, _ = grpo(reference_engine().url)
    trainer.train()
    of_trl = [record for record in trainer.state.log_history if "loss" in record]
    assert [record["step"] for record in of_trl] == [1, 2, 3]
    assert all({"perf/weight_sync_s", "reward"} <= set(record) for record in of_trl)
    assert not any("weightwire/total_s" in record for record in of_trl)


@pytest.mark.parametrize("bind", [True, False])
def test_the_other_asynchronous_trainer_of_trls_has_the_same_seam(
    bind, tiny_checkpoint, reference_engine, served, tmp_path
):
    url = reference_engine().url
    transfer = WeightTransfer(url, OPTIONS)
    trainer = async_distillation(tiny_checkpoint, tmp_path / "out", transfer, url)
    if bind:
        transfer.bind(trainer)
    trainer.train()
    assert served(url, trainer.model)
    assert versions(trainer) == ([0, 1, 2, 3] if bind else [])


@pytest.mark.parametrize("version", ["0.17.1", "0.22.1", "0.33.0"])
def test_an_unbound_transfer_learns_from_the_first_stream_what_will_travel(version, grpo, reference_engine, served):
    url = reference_engine(EngineSettings(version=version)).url
    trainer, transfer = grpo(url, bind=False)
    trainer.train()
    assert served(url, trainer.model)
    assert transfer.receipt.version == str(STEPS + 1)


def test_adapters_are_merged_beside_the_model_whose_own_weights_keep_every_bit(grpo, reference_engine, served):
    url = reference_engine().url
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    trainer, _ = grpo(url, peft_config=config)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if not p.requires_grad}
    trainer.train()
    assert served(url, trainer.model)
    assert [name for name, p in trainer.model.named_parameters() if name in before and not p.equal(before[name])] == []
    assert "merge_adapter" not in vars(trainer.model)


def test_unbound_trl_merges_the_adapters_itself(grpo, reference_engine, served):
    url = reference_engine().url
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    trainer, _ = grpo(url, bind=False, peft_config=config)
    trainer.train()
    assert served(url, trainer.model)


def test_frozen_parameters_are_sent_by_a_bound_transfer(grpo, reference_engine, served):
    url = reference_engine().url
    trainer, _ = grpo(url)
    trainer.model.get_input_embeddings().requires_grad_(False)
    trainer.train()
    assert served(url, trainer.model)


def test_an_unbound_transfer_refuses_a_stream_without_the_frozen_ones_and_names_the_cure(grpo, reference_engine):
    engine = reference_engine()
    trainer, _ = grpo(engine.url, bind=False)
    trainer.model.get_input_embeddings().requires_grad_(False)
    with pytest.raises(ManifestError, match=r"transfer\.bind\(trainer\)"):
        trainer.train()
    assert standing(engine.url) == (EngineState.WHOLE, False)


def test_a_trainer_may_train_twice(grpo, reference_engine, served):
    url = reference_engine().url
    trainer, _ = grpo(url)
    trainer.train()
    trainer.args.max_steps = STEPS
    trainer.train()
    assert served(url, trainer.model)


@pytest.mark.parametrize("bind", [True, False])
def test_nothing_is_trained_if_no_server_answers(bind, grpo):
    trainer, _ = grpo("http://127.0.0.1:9", bind=bind)
    with pytest.raises(EngineUnreachable):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("bind", [True, False])
def test_a_server_that_refuses_in_the_middle_ends_training_torn_and_paused_and_the_next_job_mends_it(
    bind, grpo, reference_engine, served
):
    engine = reference_engine()
    trainer, _ = grpo(engine.url, bind=bind)
    engine.set_faults("receive:refuse=no more memory@9")
    with pytest.raises(UpdateFailed, match="no more memory"):
        trainer.train()
    assert standing(engine.url) == (EngineState.TORN, True)
    engine.set_faults()
    again, _ = grpo(engine.url, bind=bind)
    again.train()
    assert standing(engine.url) == (EngineState.WHOLE, False)
    assert served(engine.url, again.model)


def test_resume_on_a_torn_engine_raises_and_says_which(grpo, reference_engine):
    engine = reference_engine()
    _, transfer = grpo(engine.url)
    transfer.init_weight_transfer()
    transfer.send_weights(iter(()))
    transfer.resume()
    engine.set_faults("receive:refuse=boom@3")
    with pytest.raises(UpdateFailed):
        transfer.send_weights(iter(()))
    with pytest.raises(StateError, match=engine.url):
        transfer.resume()
    transfer.destroy()
    assert standing(engine.url) == (EngineState.TORN, True)


def test_a_server_that_says_nothing_ends_training_within_the_deadline(grpo, reference_engine):
    engine = reference_engine()
    trainer, _ = grpo(engine.url, options={"timeout": 3})
    engine.set_faults("finish:stall=60")
    began = time.monotonic()
    with pytest.raises(UpdateFailed):
        trainer.train()
    assert time.monotonic() - began < 3 + 10 + 3  # the deadline, closing, and a busy machine


@pytest.mark.parametrize("at", [0, 7])
def test_an_unbound_stream_that_raises_ends_training(at, grpo, reference_engine):
    engine = reference_engine()
    trainer, transfer = grpo(engine.url, bind=False)
    transfer.init_weight_transfer()
    transfer.send_weights(trainer._streaming_iter())
    with pytest.raises(UpdateFailed, match="told to"):
        transfer.send_weights(raising(trainer._streaming_iter(), at))
    with pytest.raises(StateError):
        transfer.resume()
    transfer.send_weights(trainer._streaming_iter())
    transfer.resume()
    transfer.destroy()
    assert standing(engine.url) == (EngineState.WHOLE, False)


def raising(stream, at):
    for index, row in enumerate(stream):
        if index == at:
            raise RuntimeError("told to")
        yield row


@pytest.mark.parametrize("fault", ["", "pause:refuse", "receive:refuse=boom@2"])
def test_the_stream_is_read_to_its_end_whatever_happens_since_other_ranks_run_it_too(fault, grpo, reference_engine):
    engine = reference_engine()
    trainer, transfer = grpo(engine.url, bind=False)
    transfer.send_weights(trainer._streaming_iter())
    engine.set_faults(*filter(None, [fault]))
    taken = []
    stream = (taken.append(row[0]) or row for row in trainer._streaming_iter())
    if fault:
        with pytest.raises(UpdateFailed):
            transfer.send_weights(stream)
    else:
        transfer.send_weights(stream)
    assert taken == [name for name, _ in trainer.model.named_parameters()]
    transfer.destroy()


def test_after_a_training_the_model_can_be_saved_and_copied(grpo, reference_engine, tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj"])
    trainer, _ = grpo(reference_engine().url, peft_config=config)
    torch.save(trainer.model, tmp_path / "bound.pt")
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "adapter_model.safetensors").is_file()
