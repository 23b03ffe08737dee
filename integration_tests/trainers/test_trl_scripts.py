"""The scripts of TRL's page run as they stand there, with TRL's own rollout worker; what is served is what is saved.

A script pushes into the reference engine, and into real vLLM servers on this CPU: with our engine, and stock ones,
whose bytes go over gloo in NCCL's place (the stock shim).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trl
import weightwire
from launch import _kill, _variables
from weightwire_testing import environments
from weightwire_testing.reference import EngineSettings
from weightwire_testing.servers import Setup, VllmServer

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "plugins" / "weightwire-trl" / "tests"
SECONDS = 300.0
sys.path.insert(0, str(HELPERS))

from saying import PROMPT, SMALL, distance, forward  # noqa: E402
from trl_on_cpu import tokenizer  # noqa: E402
from weightwire_testing.sampling import score  # noqa: E402


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint with a tokenizer, and a chat template that TRL can read answers of."""
    made = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    words = tokenizer()
    words.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    words.save_pretrained(made)
    return made


def run_script(name: str, folder: Path, *arguments: str, **variables: str) -> Path:
    """Run the page's script of that name as a user would, in a folder of its own; returns where it saved."""
    page = (ROOT / "docs" / "trl.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (script,) = [block for block in blocks if block.startswith(f'"""{name}: ')]
    (folder / name).write_text(f"import trl_on_cpu  # the ways round what needs a GPU\n{script}")
    log = folder / f"{name}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, name, *arguments],
            cwd=folder,
            env=_variables(PYTHONPATH=str(HELPERS), **variables),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(SECONDS)
        finally:
            _kill(process)
    assert status == 0, log.read_text()[-8000:]
    return folder / "trained"


SCRIPTS = {"train_grpo.py": "3", "train_sft.py": "4"}
"""And the last version each of them pushes."""


def assert_served(url: str, saved: Path, checkpoint: Path, version: str) -> float:
    """The engine says what the saved weights say, and not what it said at the start; returns how exactly."""
    assert weightwire.inspect(url).weight_version in (version, None)
    said = score(url, PROMPT)
    off = distance(said, forward(saved))
    assert off < SMALL < distance(said, forward(checkpoint))
    return off


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_page_serves_what_it_saves(name: str, checkpoint, reference_engine, tmp_path) -> None:
    settings = EngineSettings(checkpoint=str(checkpoint), served_name=str(checkpoint))
    url = reference_engine(settings).url
    assert_served(url, run_script(name, tmp_path, str(checkpoint), url), checkpoint, SCRIPTS[name])


CELLS = [
    pytest.param(engine, release, id=f"trl-{engine}-{release}")  # 0.32 is beyond what TRL 1.16's own client takes
    for engine in ("ours", "stock")
    for release in ("0.22.1", "0.32.0")
]
PLANES = {"ours": "gloo", "stock": "stock-shim"}


@pytest.mark.timeout(3600)  # the first use of a release makes its environment
@pytest.mark.parametrize(("engine", "release"), CELLS)
def test_the_scripts_run_with_a_real_server_that_generates_the_rollouts(
    engine: str, release: str, checkpoint, tmp_path, record_testsuite_property
) -> None:
    off = []
    with VllmServer(environments.ensure(release), checkpoint, setup=Setup(engine=engine)) as server:
        for name, version in SCRIPTS.items():
            words = (str(checkpoint), server.url)
            saved = run_script(name, tmp_path, *words, WEIGHTWIRE_DATA_PLANE=PLANES[engine])
            off.append(assert_served(server.url, saved, checkpoint, version))
    record_testsuite_property("largest difference", f"{max(off):.1e}")
