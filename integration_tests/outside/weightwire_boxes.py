"""An engine that keeps bytes in boxes, the calls to it, and plain sockets for the bytes: a plugin in one file.

``python -m weightwire_boxes`` starts the engine; its first line is its address.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from weightwire import hookimpl
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, EngineRefused
from weightwire.messages import EngineInfo, EngineKind, ReceiverLimits, Rendezvous, TransferStats
from weightwire.registry import ControlPlaneEntry, DataPlaneEntry, Registry

if TYPE_CHECKING:
    import torch
    from weightwire.http import Http
    from weightwire.messages import ChannelRequest, ChannelSpec, PackGeometry, TensorMeta, TransferPlan, Window
    from weightwire.options import Options
    from weightwire.planes import ProgressSink, Watch, WeightSource


@hookimpl
def weightwire_register(registry: Registry) -> None:
    registry.add_control_plane(
        ControlPlaneEntry(
            name="boxes",
            engine="boxes",
            since="1",
            before="2",
            identify="weightwire_boxes:identify",
            factory="weightwire_boxes:Control",
        )
    )
    registry.add_data_plane(DataPlaneEntry(name="sockets", backends=("boxes",), factory="weightwire_boxes:Sockets"))


# The calls.


def identify(http: Http, deadline: Deadline) -> str | None:
    reply = http.get("/boxes", deadline)
    return json.loads(reply.body)["version"] if reply.status == 200 else None


class Control:
    def __init__(self, http: Http, version: str, options: Options) -> None:
        self._http, self._version = http, version

    def probe(self, deadline: Deadline) -> EngineInfo:
        state = json.loads(self._http.get("/boxes", deadline).body)
        return EngineInfo(
            url=self._http.url,
            engine="boxes",
            version=self._version,
            dialect="1",
            control_plane="boxes",
            backend="boxes",
            kind=EngineKind.OURS,
            world_size=1,
            limits=ReceiverLimits(aligned_packs=False),
            paused=state["paused"],
            weight_version=state["holds"],
        )

    def _say(self, path: str, deadline: Deadline, **said: object) -> None:
        reply = self._http.post(path, deadline, json.dumps(said).encode())
        if reply.status != 200:
            raise EngineRefused(f"{path} was refused.", server_text=reply.text)

    def init_channel(self, request: ChannelRequest, deadline: Deadline) -> Call[None]:
        meeting, shape = request.rendezvous, request.geometry
        tensors = [[t.name, t.dtype, t.shape] for t in request.manifest.tensors]
        said = {"place": [meeting.address, meeting.port], "tensors": tensors}
        pack = [shape.packed, shape.buffer_bytes]
        return Call(lambda: self._say("/join", deadline, pack=pack, **said), doing="joining")

    def pause(self, mode: str, cache: str, deadline: Deadline) -> None:
        self._say("/pause", deadline, paused=True)

    def begin(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._say("/begin", deadline)

    def update(self, plan: TransferPlan, window: Window, deadline: Deadline) -> Call[None]:
        return Call(lambda: self._say("/receive", deadline, start=window.start, stop=window.stop), doing="receiving")

    def finish(self, plan: TransferPlan, deadline: Deadline) -> None:
        self._say("/finish", deadline, version=plan.version)

    def resume(self, deadline: Deadline) -> None:
        self._say("/pause", deadline, paused=False)

    def abort_update(self, plan: TransferPlan, deadline: Deadline) -> None:
        raise EngineRefused("boxes are filled in place")

    def mark(self, weight_version: str, deadline: Deadline) -> bool:
        self._say("/finish", deadline, version=weight_version)
        return True

    def weight_version(self, deadline: Deadline) -> str | None:
        return self.probe(deadline).weight_version

    def flush(self, deadline: Deadline) -> None:
        self._say("/begin", deadline)

    def is_paused(self, deadline: Deadline) -> bool:
        return self.probe(deadline).paused

    def close_channel(self, deadline: Deadline) -> None:
        self._say("/leave", deadline)

    def close(self) -> None:
        self._http.close()


# The bytes: weightwire_torch's pump, over sockets.


class Landed:
    def land(self) -> None:
        pass


class SocketBroadcaster:
    depth = 1

    def __init__(self, peers: Sequence[socket.socket]) -> None:
        self.peers = peers

    def place(self, targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        from weightwire_torch.broadcasting import copy_on_host

        copy_on_host(targets, tensors)

    def ready(self) -> Any:
        return lambda: None

    def broadcast(self, flat: torch.Tensor, ready: Any, deadline: Deadline) -> Landed:
        for peer in self.peers:
            peer.settimeout(max(deadline.remaining(), 0.001))
            try:
                peer.sendall(flat.numpy())
            except TimeoutError as late:
                raise deadline.exceeded("sending") from late
            except OSError as broken:
                raise ChannelError(f"A receiver is gone: {broken}.") from broken
        return Landed()

    def abort(self) -> None:
        for peer in self.peers:
            hang_up(peer)


def hang_up(one: socket.socket) -> None:
    """Closing alone does not free a thread that is sending; shutting down does."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


class Sockets:
    def __init__(self) -> None:
        self.progress: ProgressSink | None = None
        self._listener: socket.socket | None = None
        self._peers: list[socket.socket] = []
        self._pump: Any = None

    def prepare(self, spec: ChannelSpec, deadline: Deadline) -> Rendezvous:
        from weightwire_torch.pump import Pump
        from weightwire_torch.ring import Ring

        self._listener = socket.create_server(("127.0.0.1", 0))
        ring = Ring.fitting(spec.manifest.tensors, spec.geometry, slots=2)
        self._pump = Pump(SocketBroadcaster(self._peers), ring)
        self._size = spec.world_size
        port = self._listener.getsockname()[1]
        return Rendezvous(address="127.0.0.1", port=port, world_size=spec.world_size, timeout=spec.timeout)

    def join(self, deadline: Deadline, watch: Watch) -> None:
        from weightwire_torch.broadcasting import Guard

        if self._listener is None:
            raise ChannelError("not open")
        self._listener.settimeout(0.05)
        while len(self._peers) < self._size - 1:
            Guard(deadline, watch).check("waiting for a receiver")
            try:
                self._peers.append(self._listener.accept()[0])
            except TimeoutError:
                continue

    def send(
        self, plan: TransferPlan, window: Window, source: WeightSource, deadline: Deadline, watch: Watch
    ) -> TransferStats:
        from weightwire_torch.broadcasting import Guard
        from weightwire_torch.shipment import Shipment

        if self._pump is None:
            raise ChannelError("not open")
        guard = Guard(deadline, watch)
        return self._pump.send(Shipment.of(plan, window), source, guard=guard, progress=self.progress)

    def abort(self) -> None:
        for one in [*self._peers, *filter(None, [self._listener])]:
            hang_up(one)
        self._listener, self._pump = None, None
        self._peers.clear()

    def close(self, deadline: Deadline) -> None:
        self.abort()


class Receiver:
    """The other end; ``join`` is also what the kit asks for."""

    def __init__(self, place: tuple[str, int], geometry: PackGeometry, timeout: float) -> None:
        self._geometry = geometry
        self._socket = socket.create_connection(place, timeout)
        self._socket.settimeout(timeout)

    def receive(self, tensors: Sequence[TensorMeta]) -> Iterator[tuple[str, torch.Tensor]]:
        import torch
        from weightwire_torch.framing import packs, views

        for pack in packs(tensors, self._geometry):
            buffer = torch.empty(pack.nbytes, dtype=torch.uint8)
            left = memoryview(buffer.numpy())
            while left:
                count = self._socket.recv_into(left)
                if not count:
                    raise ChannelError("The sender is gone.")
                left = left[count:]
            yield from zip((meta.name for meta in pack.tensors), views(buffer, pack), strict=True)

    def close(self) -> None:
        self._socket.close()


def join(job: Any) -> Receiver:
    return Receiver((job.rendezvous.address, job.rendezvous.port), job.geometry, job.rendezvous.timeout)


# The engine.


class Boxes:
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"version": "1.0", "paused": False, "holds": "nothing", "boxes": {}}
        self.receiver: Receiver | None = None
        self.tensors: list[TensorMeta] = []

    def do(self, path: str, said: dict[str, Any]) -> None:
        import torch
        from weightwire.messages import PackGeometry, TensorMeta

        if path == "/join":
            packed, size = said["pack"]
            shape = PackGeometry(packed=packed, buffer_bytes=size, num_buffers=1)
            self.tensors = [TensorMeta(name, dtype, tuple(dims)) for name, dtype, dims in said["tensors"]]
            self.receiver = Receiver(tuple(said["place"]), shape, 30.0)
        elif path == "/receive":
            for name, tensor in self.receiver.receive(self.tensors[said["start"] : said["stop"]]):
                raw = tensor.contiguous().reshape(-1).view(dtype=torch.uint8)
                self.state["boxes"][name] = hashlib.sha256(raw.numpy()).hexdigest()
        elif path == "/finish":
            self.state["holds"] = said["version"]
        elif path == "/pause":
            self.state["paused"] = said["paused"]


def main() -> None:
    boxes = Boxes()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            self.answer(*((200, json.dumps(boxes.state)) if self.path == "/boxes" else (404, "")))

        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                boxes.do(self.path, said)
            except Exception as error:
                self.answer(500, repr(error))
            else:
                self.answer(200, "{}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
