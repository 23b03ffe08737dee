"""A stand-in for a vLLM server, as strict as the real one, over real sockets; and what calls are made of."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest
from weightwire.deadlines import Deadline
from weightwire.http import Http
from weightwire.messages import ChannelRequest, Manifest, PackGeometry, Rendezvous, TensorMeta, TransferPlan, Window
from weightwire.options import Options
from weightwire_vllm.control import VllmControl

NESTED = "Call to collective_rpc method failed: Worker failed with error '{}', please check the stack trace above"


class Request(NamedTuple):
    verb: str
    path: str
    query: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    body: object


def nested(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "InternalServerError", "param": None, "code": status}})


class Workers:
    """The executor's reply queues: it raises at the first failure and leaves the later workers' replies unread."""

    def __init__(self, count: int) -> None:
        self.replies: list[deque[str]] = [deque() for _ in range(count)]

    def call(self, errors: list[str], answer: object) -> Answer:
        for queue, error in zip(self.replies, errors, strict=True):
            queue.append(error)
        for queue in self.replies:
            if error := queue.popleft():
                return nested(500, NESTED.format(error))
        return Answer(200, answer)


class StandIn:
    """The state of one server. Tests set its fields; *calls* holds what it was sent."""

    def __init__(self) -> None:
        self.version = "0.32.0"
        self.dev_mode = True
        self.paused = False
        self.sleeping = False
        self.open = False
        self.weight_version = "default"
        self.environment: dict[str, object] = {"VLLM_DISABLE_PYNCCL": False}
        self.config: dict[str, object] = {
            "model_config": {"model": "org/model", "dtype": "torch.bfloat16", "quantization": None},
            "parallel_config": {"world_size": 1, "data_parallel_size": 1, "enable_eplb": False},
            "cache_config": {"mamba_block_size": None},
            "device_config": {"device": "cuda"},
            "weight_transfer_config": {"backend": "nccl"},
            "lora_config": None,
            "speculative_config": None,
        }
        self.workers = Workers(1)
        self.fails: dict[str, list[str]] = {}
        self.instead: dict[str, tuple[int, object]] = {}
        self.silent: set[str] = set()
        self.released = threading.Event()
        self.calls: list[Request] = []

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

    def posts(self) -> list[Request]:
        return [call for call in self.calls if call.verb == "POST"]

    def answer(self, request: Request) -> Answer:
        self.calls.append(request)
        if request.path in self.silent:
            self.released.wait(20)
        if request.path in self.instead:
            return Answer(*self.instead[request.path])
        routes = {**self._always(), **(self._dev() if self.dev_mode else {})}
        if (request.verb, request.path) in routes:
            return routes[request.verb, request.path](request)
        known = any(path == request.path for _, path in routes)
        return Answer(405, {"detail": "Method Not Allowed"}) if known else Answer(404, {"detail": "Not Found"})

    def _always(self) -> dict[tuple[str, str], Callable[[Request], Answer]]:
        awake = "0.0" if self.sleeping else "1.0"
        gauge = f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {awake}\n'
        return {
            ("GET", "/version"): lambda _: Answer(200, {"version": self.version}),
            ("GET", "/metrics"): lambda _: Answer(200, f"# HELP x\n{gauge}".encode()),
        }

    def _dev(self) -> dict[tuple[str, str], Callable[[Request], Answer]]:
        size = len(self.workers.replies)
        found: dict[tuple[str, str], Callable[[Request], Answer]] = {
            ("GET", "/get_world_size"): lambda _: Answer(200, {"world_size": size}),
            ("GET", "/server_info"): self._server_info,
            ("GET", "/is_paused"): lambda _: Answer(200, {"is_paused": self.paused}),
            ("GET", "/is_sleeping"): lambda _: Answer(200, {"is_sleeping": self.paused or self.sleeping}),
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/init_weight_transfer_engine"): lambda r: self._workers(r, "Weight transfer initialized"),
            ("POST", "/start_weight_update"): self._start,
            ("POST", "/update_weights"): self._update,
            ("POST", "/finish_weight_update"): self._finish,
            ("POST", "/collective_rpc"): lambda r: self.workers.call(self._errors(r), {"results": [None] * size}),
        }
        if self.minor >= 27:
            found["GET", "/weight_info"] = lambda _: Answer(200, {"weight_version": self.weight_version})
            found["POST", "/update_weight_version"] = self._mark
        if self.minor >= 32:
            found["POST", "/shutdown_weight_transfer_engine"] = lambda r: self._workers(r, "Weight transfer shut down")
        return found

    def _server_info(self, request: Request) -> Answer:
        assert request.query == {"config_format": "json"}
        return Answer(200, {"vllm_config": self.config, "vllm_env": self.environment, "system_env": {}})

    def _errors(self, request: Request) -> list[str]:
        return self.fails.pop(request.path, [""] * len(self.workers.replies))

    def _workers(self, request: Request, message: str) -> Answer:
        return self.workers.call(self._errors(request), {"message": message})

    def _pause(self, request: Request) -> Answer:
        if request.query["mode"] not in {"abort", "wait", "keep"}:
            return nested(400, "literal_error")
        self.paused = True
        return Answer(200, {"status": "paused"})

    def _resume(self, _request: Request) -> Answer:
        self.paused = False
        return Answer(200, {"status": "resumed"})

    def _start(self, request: Request) -> Answer:
        if self.minor < 25 and not request.body:
            return Answer(400, {"detail": "Invalid JSON format"})
        if self.open:
            return self._refuse(
                "start_weight_update called while a weight update is already active. Call finish first."
            )
        answer = self._workers(request, "Weight update started")
        self.open = True
        return answer

    def _update(self, request: Request) -> Answer:
        if not self.open:
            return self._refuse("start_weight_update must be called before update_weights.")
        answer = self._workers(request, "Weights updated")
        self.open = answer.status == 200 or self.minor < 23
        return answer

    def _finish(self, request: Request) -> Answer:
        if not self.open:
            before = "start_weight_update must be called before finish_weight_update."
            since = "finish_weight_update called without a matching start_weight_update."
            return self._refuse(before if self.minor < 23 else since)
        answer = self._workers(request, "Weight update finished")
        if answer.status == 200:
            self.open = False
            if self.minor >= 27 and request.body:
                self.weight_version = json.loads(request.body)["weight_version"]
        return answer

    def _refuse(self, text: str) -> Answer:
        return self.workers.call([text] * len(self.workers.replies), None)

    def _mark(self, request: Request) -> Answer:
        self.weight_version = json.loads(request.body)["new_version"]
        return Answer(200, {"success": True, "new_version": self.weight_version})


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # head and body in one packet: two would wait for each other (Nagle)

        doomed = False
        """Where an exception made an answer, uvicorn closes the connection a little later, and does not say so."""

        def _serve(self) -> None:
            if self.doomed:
                self.close_connection = True
                return
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            assert not body or self.headers["Content-Type"] == "application/json"
            answer = stand_in.answer(Request(self.command, parts.path, dict(parse_qsl(parts.query)), body))
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.doomed = answer.status >= 500

        do_GET = do_POST = _serve  # noqa: N815 - the base's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            """Say nothing."""

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left at its deadline is what some tests are about."""


@pytest.fixture
def vllm() -> StandIn:
    """The server's state."""
    return StandIn()


@pytest.fixture
def http(vllm: StandIn) -> Iterator[Http]:
    """A connection to it."""
    server = Server(("127.0.0.1", 0), _handler(vllm))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    http = Http(f"http://127.0.0.1:{server.server_address[1]}", Options())
    yield http
    vllm.released.set()
    http.close()
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def control(http: Http, vllm: StandIn) -> Callable[[str], VllmControl]:
    """Makes the control plane of a version; the server then says that it is that version."""

    def make(version: str) -> VllmControl:
        vllm.version = version
        return VllmControl(http, version)

    return make


@pytest.fixture
def soon() -> Deadline:
    """Enough for any call here, and little enough to notice one that hangs."""
    return Deadline.after(10)


@pytest.fixture
def manifest() -> Manifest:
    """Three tensors in two groups."""
    tensors = (
        TensorMeta("a.weight", "bfloat16", (2, 3)),
        TensorMeta("a.bias", "bfloat16", (2,)),
        TensorMeta("b.scale", "float32", ()),
    )
    return Manifest(tensors, ((0, 2), (2, 3)))


@pytest.fixture
def request_to_join(manifest: Manifest) -> ChannelRequest:
    """One engine's part in a channel."""
    return ChannelRequest(
        rendezvous=Rendezvous(address="10.0.0.7", port=4711, world_size=3, timeout=60.0, extra={"transport": "gloo"}),
        rank_offset=1,
        geometry=PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1),
        manifest=manifest,
    )


@pytest.fixture
def plan(manifest: Manifest) -> TransferPlan:
    """A round of two windows."""
    return TransferPlan(
        round_id="r1",
        version="7",
        manifest=manifest,
        windows=(Window(0, 0, 2), Window(1, 2, 3)),
        geometry=PackGeometry(packed=True, buffer_bytes=1024, num_buffers=1),
    )
