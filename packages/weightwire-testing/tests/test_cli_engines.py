"""The command against a reference engine in a process of its own, and everything bad it may be given."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import torch
from safetensors.torch import load_file, save_file
from weightwire import discovery
from weightwire.cli.app import run
from weightwire_testing.model import TinyLlama, save_checkpoint
from weightwire_testing.reference.settings import Backend, EngineSettings

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Nothing waits for long, no file of the developer's is read, and no more is installed than is said here."""
    monkeypatch.setenv("WEIGHTWIRE_TIMEOUT", "20")
    monkeypatch.setenv("WEIGHTWIRE_PLUGINS", "weightwire-testing,weightwire-torch,weightwire-vllm")
    monkeypatch.chdir(tmp_path)
    discovery.plugins.cache_clear()
    yield
    discovery.plugins.cache_clear()


@pytest.fixture
def checkpoint(tmp_path):
    return save_checkpoint(TinyLlama(seed=2), tmp_path / "step-7")


def outcome(capsys, *words: object) -> tuple[int, dict]:
    code = run([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refusal(capsys, *words: object) -> tuple[int, str]:
    code, found = outcome(capsys, *words)
    error = found["error"]
    return code, f"{error['message']} {error.get('server_text', '')} {error.get('hint', '')}"


def untouched(engine) -> bool:
    """Whether nothing was called that changes anything."""
    return [call.path for call in engine.calls() if call.method != "GET"] == []


def test_a_checkpoint_is_pushed_and_served(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    before = engine.fingerprint()
    code, pushed = outcome(capsys, "push", checkpoint, engine.url)
    assert code == 0
    assert pushed["receipt"]["version"] == "step-7"
    assert pushed["receipt"]["stats"]["nbytes"] == sum(
        t.nbytes for t in TinyLlama(seed=2).checkpoint_tensors().values()
    )
    assert engine.fingerprint() != before
    code, status = outcome(capsys, "status", engine.url)
    info = status["engines"][0]["info"]
    assert code == 0
    assert (info["weight_version"], info["state"], info["paused"], info["kind"]) == ("step-7", "whole", False, "ours")


def test_a_sharded_checkpoint_is_pushed_as_the_whole_one_is(reference_engine, checkpoint, tmp_path, capsys):
    engine = reference_engine()
    assert outcome(capsys, "push", checkpoint, engine.url)[0] == 0
    whole = engine.fingerprint()
    engine.reset()
    assert outcome(capsys, "push", sharded(checkpoint, tmp_path / "sharded"), engine.url)[0] == 0
    assert engine.fingerprint() == whole


def test_two_engines_take_one_push(reference_engine, checkpoint, capsys):
    engines = [reference_engine(), reference_engine()]
    code, pushed = outcome(capsys, "push", checkpoint, *(engine.url for engine in engines))
    assert code == 0
    assert sorted(pushed["receipt"]["engines"]) == sorted(engine.url for engine in engines)
    assert engines[0].fingerprint() == engines[1].fingerprint()


def test_a_torn_engine_is_shown_recovered_and_mended(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    engine.set_faults("finish:refuse=500,no room for the finish")
    code, words = refusal(capsys, "push", checkpoint, engine.url)
    assert code == 3
    assert "no room for the finish" in words
    assert run(["status", engine.url]) == 3
    assert "torn, paused" in capsys.readouterr().out
    code, recovered = outcome(capsys, "recover", engine.url)
    assert (code, recovered["flushed"]) == (0, [engine.url])
    assert run(["status", engine.url]) == 3
    said = capsys.readouterr().out
    assert "torn, paused: recovered; it must not serve before a full push has reached it" in said
    assert "no update is half done in it any more" in said
    assert outcome(capsys, "push", checkpoint, engine.url)[0] == 0
    assert run(["status", engine.url]) == 0


def test_the_progress_goes_to_stderr_and_only_to_a_terminal(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    assert run(["push", str(checkpoint), engine.url]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert f"{engine.url} now serves step-7: 1.6 MiB" in out


# Servers that can't be pushed into


def test_a_server_that_is_not_there(checkpoint, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert run(["push", str(checkpoint), url]) == 4
        assert "is the server up" in capsys.readouterr().err
        assert run(["status", url]) == 4


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>a web page</html>")

    def log_message(self, *words):
        """Say nothing."""


def test_something_that_is_no_engine(checkpoint, capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        code, _ = refusal(capsys, "push", checkpoint, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert code in {4, 6}


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (EngineSettings(dev_mode=False), 2, "VLLM_SERVER_DEV_MODE"),
        (EngineSettings(backend=Backend.NONE), 2, "--weight-transfer-config"),
        (EngineSettings(version="0.40.0"), 6, "--allow-untested"),
        (EngineSettings(version="0.19.0"), 6, "weightwire-vllm-legacy"),
    ],
    ids=["dev-mode-off", "no-weight-transfer", "too-new", "too-old"],
)
def test_a_server_not_set_up_is_refused_untouched(reference_engine, checkpoint, capsys, *, settings, code, said):
    engine = reference_engine(settings)
    found, words = refusal(capsys, "push", checkpoint, engine.url)
    assert found == code, words
    assert said in words
    assert untouched(engine)


def test_a_backend_that_nothing_here_can_feed_is_refused_untouched(reference_engine, checkpoint, capsys):
    if torch.cuda.is_available():
        pytest.skip("NCCL could feed it")
    engine = reference_engine(EngineSettings(backend=Backend.NCCL))
    code, words = refusal(capsys, "push", checkpoint, engine.url)
    assert code == 6
    assert "'nccl'" in words
    assert untouched(engine)


def test_a_release_beyond_the_table_is_taken_when_asked_for(reference_engine, capsys):
    engine = reference_engine(EngineSettings(version="0.40.0"))
    assert outcome(capsys, "status", engine.url)[0] == 6
    assert outcome(capsys, "status", engine.url, "--allow-untested")[0] == 0


def test_a_server_that_sleeps_is_refused(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    requests.post(f"{engine.url}/sleep", params={"level": "1"}, timeout=10).raise_for_status()
    code, words = refusal(capsys, "push", checkpoint, engine.url)
    assert code == 3, words
    assert "wake_up" in words


def test_a_server_in_the_middle_of_anothers_update_counts_as_torn(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    body = {"new_version": "weightwire:updating:somebody-1"}
    requests.post(f"{engine.url}/update_weight_version", json=body, timeout=10).raise_for_status()
    assert run(["status", engine.url]) == 3
    capsys.readouterr()
    assert outcome(capsys, "push", checkpoint, engine.url)[0] == 0


@pytest.mark.parametrize("phase", ["pause", "start", "init"])
def test_a_500_is_told_in_the_servers_own_words(reference_engine, checkpoint, capsys, phase):
    engine = reference_engine()
    engine.set_faults(f"{phase}:refuse=500,the dog ate it")
    code, words = refusal(capsys, "push", checkpoint, engine.url)
    assert code in {1, 3, 4}
    assert "the dog ate it" in words


def test_an_answer_that_is_no_answer_is_told_so(reference_engine, capsys):
    engine = reference_engine()
    engine.set_faults("server_info:garbage@*")
    assert run(["status", engine.url]) in {2, 4, 6}
    assert "Traceback" not in capsys.readouterr().err


# Checkpoints that can't be pushed


def sharded(checkpoint: Path, directory: Path) -> Path:
    """The same checkpoint in two files with an index."""
    directory.mkdir()
    shutil.copy(checkpoint / "config.json", directory)
    tensors = load_file(checkpoint / "model.safetensors")
    names = sorted(tensors)
    files = {
        name: f"model-{1 + (number >= len(names) // 2):05}-of-00002.safetensors" for number, name in enumerate(names)
    }
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, directory / file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def change(checkpoint: Path, edit: Callable[[Tensors], object]) -> None:
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


def without_index(checkpoint: Path) -> None:
    sharded(checkpoint, checkpoint / "x")
    (checkpoint / "model.safetensors").unlink()
    for file in (checkpoint / "x").glob("*.safetensors"):
        shutil.move(file, checkpoint)


def without_shard(checkpoint: Path) -> None:
    sharded(checkpoint, checkpoint / "x")
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "config.json").unlink()
    for file in (checkpoint / "x").iterdir():
        shutil.move(file, checkpoint)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()


def truncated(checkpoint: Path) -> None:
    os.truncate(checkpoint / "model.safetensors", 300_000)


def not_safetensors(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"PK" * 100)


def no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()


def unknown_name(checkpoint: Path) -> None:
    change(checkpoint, lambda tensors: tensors.update({"model.layers.0.self_attn.x_proj.weight": torch.ones(2)}))


def wrong_shape(checkpoint: Path) -> None:
    change(checkpoint, lambda tensors: tensors.update({NORM: torch.ones(3)}))


def half_a_fused_layer(checkpoint: Path) -> None:
    change(checkpoint, lambda tensors: tensors.pop(Q_PROJ))


def empty_tensor(checkpoint: Path) -> None:
    change(checkpoint, lambda tensors: tensors.update({NORM: torch.ones(0)}))


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (without_index, 2, "model.safetensors.index.json"),
        (without_shard, 2, "model-00002-of-00002.safetensors"),
        (truncated, 2, "model.safetensors"),
        (not_safetensors, 2, "model.safetensors"),
        (no_weights, 2, "safetensors"),
        (unknown_name, 6, "x_proj"),
        (wrong_shape, 6, NORM),
        (half_a_fused_layer, 6, "q_proj"),
        (empty_tensor, 6, NORM),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bad_checkpoint_is_refused_by_name_and_untouched(reference_engine, checkpoint, capsys, *, spoil, code, said):
    engine = reference_engine()
    spoil(checkpoint)
    found, words = refusal(capsys, "push", checkpoint, engine.url)
    assert found == code, words
    assert said in words
    assert untouched(engine)


def test_a_dtype_the_engine_does_not_serve_is_refused_where_casting_is_not_wanted(reference_engine, checkpoint, capsys):
    engine = reference_engine()
    change(checkpoint, lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()}))
    code, words = refusal(capsys, "push", checkpoint, engine.url, "--dtype", "refuse")
    assert code == 6, words
    assert "bfloat16" in words
    assert untouched(engine)
