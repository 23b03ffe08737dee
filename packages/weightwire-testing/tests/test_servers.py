"""Servers are started, waited for and stopped. The vLLM here is a stand-in that answers as vLLM does."""

from __future__ import annotations

import json
import re
import socket
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import requests
from weightwire.errors import ConfigurationError, DeadlineExceeded, EngineRefused, GarbledReply
from weightwire_testing.environments import Environment
from weightwire_testing.sampling import greedy, score
from weightwire_testing.servers import Setup, VllmServer, reserved_port, variables

API_SERVER = """
import http.server, json, os, socketserver, subprocess, sys, time
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("stand-in", json.dumps(sys.argv[1:]), flush=True)
mode = os.environ.get("MODE", "")
if mode == "ends":
    sys.exit("no such model")
if mode == "hangs":
    time.sleep(60)
child = subprocess.Popen(["sleep", "60"])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        names = ["VLLM_PLUGINS", "WEIGHTWIRE_STOCK_SHIM", "PYTHONPATH", "VLLM_SERVER_DEV_MODE", "MODE"]
        self.say(200, {"child": child.pid, "env": {name: os.environ.get(name) for name in names}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if mode == "refuses":
            return self.say(500, {"error": "no"})
        if mode == "garbles":
            return self.say(200, {"choices": []})
        tokens = body["prompt"]
        replica = float(self.headers.get("X-data-parallel-rank", 0))
        rows = [None] + [{str(t): {"logprob": -t - replica}, "1": {"logprob": 0}} for t in tokens[1:]]
        n = body["max_tokens"]
        said = {"tokens": [f"token_id:{i}" for i in range(n)]}
        self.say(200, {"choices": [{"prompt_logprobs": rows, "logprobs": said}]})

    def say(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

http.server.HTTPServer((words["--host"], int(words["--port"])), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment whose vLLM is the stand-in above."""
    overlay = tmp_path_factory.mktemp("overlay")
    package = overlay / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(API_SERVER)
    return Environment(version="0.32.0", python=Path(sys.executable), overlay=overlay)


@pytest.fixture(scope="module")
def url(environment):
    """A server for those that only ask it something."""
    with server(environment) as running:
        yield running.url


def server(environment: Environment, mode: str = "", **changes) -> VllmServer:
    setup = Setup(variables={"MODE": mode}, **changes)
    return VllmServer(environment, Path("/checkpoint"), setup=setup, ready_within=20.0)


def test_a_server_answers_on_loopback_while_it_is_open_and_is_gone_with_its_children_after(environment):
    with server(environment) as running:
        assert running.url.startswith("http://127.0.0.1:")
        assert running.running
        child = requests.get(running.url, timeout=10).json()["child"]
        log = running.log
    assert not running.running
    assert not Path(f"/proc/{child}").exists()
    assert not log.exists()
    with pytest.raises(requests.ConnectionError):
        requests.get(running.url, timeout=10)


def test_a_server_that_is_killed_is_gone_at_once_and_can_be_started_again(environment):
    with server(environment) as running:
        child = requests.get(running.url, timeout=10).json()["child"]
        running.kill()
        assert not running.running
        assert not Path(f"/proc/{child}").exists()
        running.stop()
        running.__enter__()
        assert requests.get(running.url, timeout=10).ok


def test_stopping_what_was_never_started_removes_nothing(environment, tmp_path, monkeypatch):
    (tmp_path / "precious").touch()
    monkeypatch.chdir(tmp_path)
    server(environment).stop()
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize("engine", ["ours", "stock"])
def test_the_engine_decides_over_the_plugin_the_switch_and_the_backend(environment, monkeypatch, engine):
    monkeypatch.setenv("WEIGHTWIRE_STOCK_SHIM", "1")
    monkeypatch.setenv("VLLM_PLUGINS", "something")
    with server(environment, engine=engine) as running:
        env = requests.get(running.url, timeout=10).json()["env"]
        words = json.loads(running.log_tail().splitlines()[0].removeprefix("stand-in "))
    backend = json.loads(words[words.index("--weight-transfer-config") + 1])["backend"]
    said = {
        "ours": ("weightwire", None, "weightwire"),
        "stock": ("weightwire_stock_shim", "1", "nccl"),
    }
    assert (env["VLLM_PLUGINS"], env["WEIGHTWIRE_STOCK_SHIM"], backend) == said[engine]
    assert (env["PYTHONPATH"], env["VLLM_SERVER_DEV_MODE"]) == (str(environment.overlay), "1")


def test_parallelism_and_more_words_reach_the_command_line(environment):
    with server(environment, tp=2, dp=3, max_model_len=64, arguments=("--seed", "1")) as running:
        words = json.loads(running.log_tail().splitlines()[0].removeprefix("stand-in "))
    after = dict(pairwise(words))
    assert (after["--tensor-parallel-size"], after["--data-parallel-size"]) == ("2", "3")
    assert (after["--model"], after["--max-model-len"]) == ("/checkpoint", "64")
    assert words[-2:] == ["--seed", "1"]


@pytest.mark.parametrize(
    "case", [("0.32.0", 1, ""), ("0.32.0", 2, "nobind"), ("0.20.2", 2, r"\d+\|\d+"), ("0.20.2", 1, "")]
)
def test_workers_are_free_to_run_on_any_core_or_get_one_each_where_that_fails(environment, tmp_path, monkeypatch, case):
    version, workers, bound = case
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    release = msgspec.structs.replace(environment, version=version)
    assert re.fullmatch(bound, variables(server(release, tp=workers), tmp_path).get("VLLM_CPU_OMP_THREADS_BIND", ""))


def test_0_18_sees_the_names_that_it_wants_preloaded_and_they_lead_to_a_library(environment, tmp_path):
    release = msgspec.structs.replace(environment, version="0.18.1", python=tmp_path / "venv" / "bin" / "python")
    library = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "torch" / "lib" / "libgomp.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    paths = [Path(path) for path in variables(server(release), tmp_path)["LD_PRELOAD"].split(":")]
    assert [path.name for path in paths] == ["libtcmalloc.so", "libiomp5.so"]
    assert {path.resolve() for path in paths} == {library.resolve()}


def test_a_server_that_ends_is_reported_with_its_last_words(environment):
    with pytest.raises(ConfigurationError, match=r"ended before it was ready(?s:.*)no such model"):
        server(environment, "ends").__enter__()


def test_a_server_that_is_never_ready_is_stopped_and_reported(environment):
    late = VllmServer(environment, Path("/checkpoint"), setup=Setup(variables={"MODE": "hangs"}), ready_within=4.0)
    with pytest.raises(DeadlineExceeded, match=r"4 s passed(?s:.*)stand-in"):
        late.__enter__()
    assert not late.running


def test_a_reserved_port_can_be_bound_by_a_server_and_is_given_to_nobody_else():
    with reserved_port() as port:
        seen = set()
        for _ in range(50):
            with socket.create_server(("127.0.0.1", 0)) as other:
                seen.add(other.getsockname()[1])
        assert port not in seen
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
            socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_each_token_is_scored_by_its_own_row_and_a_replica_can_be_asked(url):
    assert score(url, [5, 6, 7]) == [-6.0, -7.0]
    assert score(url, [5, 6, 7], replica=1) == [-7.0, -8.0]
    assert greedy(url, [5, 6], n=3) == [0, 1, 2]


def test_a_refusal_carries_the_engines_words_and_garbage_is_called_so(environment):
    with server(environment, "refuses") as running, pytest.raises(EngineRefused) as caught:
        score(running.url, [1, 2])
    assert (caught.value.status, json.loads(caught.value.server_text)) == (500, {"error": "no"})
    with server(environment, "garbles") as running, pytest.raises(GarbledReply, match="choices"):
        greedy(running.url, [1], n=1)


def test_a_proxy_in_the_environment_is_not_asked_for_loopback(url, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert greedy(url, [1], n=1) == [0]
