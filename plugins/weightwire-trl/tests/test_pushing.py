"""The session behind pushes: opened once for a model, and anew for another."""

import torch
import transformers
from weightwire.states import SessionState
from weightwire_trl.pushing import Pushes

OPTIONS = {"timeout": 30, "bucket_bytes": 100_000}


def test_another_model_is_pushed_in_a_session_of_its_own(tiny_checkpoint, reference_engine, served):
    load = transformers.AutoModelForCausalLM.from_pretrained
    first, second = (load(tiny_checkpoint, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        second.lm_head.weight.mul_(2.0)
    url = reference_engine().url
    pushes = Pushes(url, OPTIONS)
    pushes.push(first, "1")
    session = pushes.open(first)
    assert pushes.open(first) is session
    pushes.push(second, "2")
    assert session.state is SessionState.CLOSED
    assert served(url, second)
    pushes.close()
