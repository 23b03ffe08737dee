"""The process: how it starts, what it says when it can't, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, DeadlineExceeded, EngineUnreachable
from weightwire_testing.reference import EngineSettings, ReferenceEngine
from weightwire_testing.reference.pool import EnginePool
from weightwire_testing.reference.release import Release

COMMAND = [sys.executable, "-m", "weightwire_testing.reference"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


def gone(url: str, deadline: Deadline) -> bool:
    while not deadline.expired:
        try:
            requests.get(url + "/version", timeout=5)
        except requests.ConnectionError:
            return True
    return False


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--version", "banana"], "'banana' is not a version"),
        (["--version", "0.16.0"], "no weight transfer over HTTP"),
        (["--fault", "nonsense"], "is not a fault"),
        (["--backend", "pigeon"], "invalid"),
        (["--checkpoint", "/nowhere"], "is no checkpoint"),
    ],
)
def test_a_wrong_argument_is_refused_in_words(words, says, tiny_checkpoint) -> None:
    done = run("--checkpoint", str(tiny_checkpoint), *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


DAMAGE = {
    "no tensors": lambda folder: (folder / "model.safetensors").unlink(),
    "half a file": lambda folder: (folder / "model.safetensors").write_bytes(b"\x40" + bytes(9)),
    "no json": lambda folder: (folder / "config.json").write_text("{"),
    "another model": lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'),
    "another size": lambda folder: _replace(folder / "config.json", '"num_hidden_layers": ', '"num_hidden_layers": 1'),
    "no such dtype": lambda folder: _replace(folder / "config.json", "float32", "banana"),
}


def _replace(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_that_can_not_be_read_is_refused_in_words(damage, tiny_checkpoint, tmp_path) -> None:
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "damaged")
    DAMAGE[damage](folder)
    done = run("--checkpoint", str(folder))
    assert done.returncode == 2
    assert f"{folder} can't be read as a checkpoint" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_where_it_listens_once_it_answers_and_ends_by_a_signal(tiny_checkpoint) -> None:
    words = [
        "--checkpoint",
        str(tiny_checkpoint),
        "--dialect",
        "0.28.0",
        "--backend",
        "none",
        "--fault",
        "pause:refuse",
    ]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            ready = json.loads(process.stdout.readline())
            assert ready["pid"] == process.pid
            assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
            assert requests.get(ready["url"] + "/version", timeout=9).json() == {"version": "0.28.0"}
            assert requests.post(ready["url"] + "/pause", timeout=9).status_code == 500
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_it_ends_with_the_process_that_started_it(tiny_checkpoint) -> None:
    script = (
        "import os, sys\n"
        "from weightwire_testing.reference import *\n"
        f"engine = ReferenceEngine(EngineSettings(checkpoint={str(tiny_checkpoint)!r})).start()\n"
        "print(engine.url, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert gone(done.stdout.strip(), Deadline.after(10))


def test_a_broken_checkpoint_is_told_with_the_process_words(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="did not start"):
        ReferenceEngine(EngineSettings(checkpoint=str(tmp_path))).start()


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(tiny_checkpoint) -> None:
    engine = ReferenceEngine(EngineSettings(checkpoint=str(tiny_checkpoint)))
    with pytest.raises(DeadlineExceeded, match="starting a reference engine"):
        engine.start(seconds=0.01)
    assert not engine.alive


def test_an_engine_that_was_not_started_has_no_address(tiny_checkpoint) -> None:
    engine = ReferenceEngine(EngineSettings(checkpoint=str(tiny_checkpoint)))
    with pytest.raises(EngineUnreachable, match="was not started"):
        _ = engine.url
    engine.stop()
    assert (engine.pid, engine.alive, engine.log(), engine.wait_dead()) == (0, False, "", 0)


def test_a_pool_lends_again_what_lives_and_drops_what_died(engine_pool: EnginePool, tiny_checkpoint) -> None:
    settings = EngineSettings(checkpoint=str(tiny_checkpoint))
    first = engine_pool.lend(settings)
    requests.post(first.url + "/pause", timeout=9)
    engine_pool.give_back(first)
    again = engine_pool.lend(settings)
    assert again is first
    assert requests.get(again.url + "/is_paused", timeout=9).json() == {"is_paused": False}
    os.killpg(again.pid, signal.SIGKILL)
    again.wait_dead()
    engine_pool.give_back(again)
    assert engine_pool.lend(settings) is not first


def test_a_pool_keeps_an_engine_that_wrong_settings_were_asked_of(engine_pool: EnginePool, tiny_checkpoint) -> None:
    settings = EngineSettings(checkpoint=str(tiny_checkpoint))
    engine = engine_pool.lend(settings)
    engine_pool.give_back(engine)
    with pytest.raises(ConfigurationError, match="is not a version"):
        engine_pool.lend(EngineSettings(checkpoint=str(tiny_checkpoint), version="x"))
    again = engine_pool.lend(settings)
    assert again.alive
    engine_pool.give_back(again)


def test_a_release_knows_its_place() -> None:
    assert Release.of("v0.32".removeprefix("v")).since(32)
    assert Release.of("0.22.1+cpu").minor == (0, 22)
    assert not Release.of("0.20.2").since(21)
