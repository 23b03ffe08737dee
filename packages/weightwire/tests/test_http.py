"""Real sockets on loopback: a server that misbehaves on the wire in every way a client can meet."""

import contextlib
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import ConfigurationError, DeadlineExceeded, EngineUnreachable, GarbledReply
from weightwire.http import Http
from weightwire.options import Options

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class WireServer:
    """Accepts connections, reads one request at a time, and lets *answer* write what it likes."""

    def __init__(self, answer: Callable[[socket.socket, bytes], bool]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.connections = 0
        self._answer = answer
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10)
            while True:
                request = _read_request(connection)
                if not request:
                    return
                self.requests.append(request)
                if not self._answer(connection, request):
                    return


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < wanted:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def wire_server(answer: Callable[[socket.socket, bytes], bool]) -> Iterator[WireServer]:
    server = WireServer(answer)
    try:
        yield server
    finally:
        server.listener.close()


def well(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(OK)
    return True


def test_a_body_travels_as_json_with_the_given_headers_and_query():
    with wire_server(well) as server:
        reply = Http(server.url, Options(headers={"Authorization": "Bearer x"})).post(
            "/pause", Deadline.after(5), b'{"a":1}', params={"mode": "keep"}
        )

    sent = server.requests[0]
    assert (reply.status, reply.text) == (200, "{}")
    assert sent.startswith(b"POST /pause?mode=keep HTTP/1.1")
    assert b"Content-Type: application/json" in sent
    assert b"Authorization: Bearer x" in sent
    assert sent.endswith(b'{"a":1}')


def test_a_connection_is_kept_between_calls():
    with wire_server(well) as server:
        http = Http(server.url, Options())
        for _ in range(3):
            http.get("/version", Deadline.after(5))

        assert (len(server.requests), server.connections) == (3, 1)


def test_an_idle_connection_is_not_used_again(monkeypatch):
    monkeypatch.setattr("weightwire.transport.IDLE_SECONDS", 0.0)
    with wire_server(well) as server:
        http = Http(server.url, Options())
        http.get("/a", Deadline.after(5))
        http.get("/b", Deadline.after(5))

        assert server.connections == 2


def test_calls_at_the_same_time_do_not_share_a_connection():
    barrier = threading.Barrier(3)

    def together(connection: socket.socket, request: bytes) -> bool:
        barrier.wait(5)
        return well(connection, request)

    with wire_server(together) as server:
        http = Http(server.url, Options())
        calls = [http.call_post("/x", Deadline.after(5)) for _ in range(3)]

        assert [call.result(Deadline.after(5)).status for call in calls] == [200, 200, 200]


def test_an_error_status_is_an_answer():
    def refuse(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 4\r\n\r\nboom")
        return True

    with wire_server(refuse) as server:
        reply = Http(server.url, Options()).get("/x", Deadline.after(5))

    assert (reply.status, reply.text) == (500, "boom")


def test_nothing_listening_is_unreachable_and_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(EngineUnreachable, match=r"got no whole answer.*refused") as caught:
        Http(url, Options()).get("/version", Deadline.after(5))

    assert caught.value.where.engine == url


def cut(connection: socket.socket, request: bytes) -> bool:
    return False


def truncate(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    return False


def garbage(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"\x00\x01\x02 not http at all\r\n\r\n")
    return False


@pytest.mark.parametrize("answer", [cut, truncate, garbage])
def test_an_answer_that_is_not_whole_is_unreachable(answer):
    with wire_server(answer) as server, pytest.raises(EngineUnreachable):
        Http(server.url, Options()).post("/update_weights", Deadline.after(5), b"{}")

    assert len(server.requests) == 1, "a control call is never repeated"


def silent(connection: socket.socket, request: bytes) -> bool:
    connection.recv(1)
    return False


def trickle_body(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    return _drip(connection)


def trickle_headers(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    return _drip(connection)


def _drip(connection: socket.socket) -> bool:
    tick = threading.Event()
    for _ in range(200):
        connection.sendall(b"x")
        tick.wait(0.02)
    return False


@pytest.mark.parametrize("answer", [silent, trickle_body, trickle_headers])
def test_a_slow_answer_never_outlasts_the_deadline(answer):
    began = time.monotonic()
    with wire_server(answer) as server, pytest.raises(DeadlineExceeded):
        Http(server.url, Options()).get("/is_paused", Deadline.after(0.3))

    assert time.monotonic() - began < 2


def test_an_endless_answer_is_garbled(monkeypatch):
    monkeypatch.setattr("weightwire.transport.LARGEST_REPLY", 1000)

    def endless(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
        return False

    with wire_server(endless) as server, pytest.raises(GarbledReply, match="more than 1000 bytes"):
        Http(server.url, Options()).get("/version", Deadline.after(5))


def test_a_redirect_is_not_followed():
    def elsewhere(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 307 X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")
        return True

    with wire_server(elsewhere) as server:
        assert Http(server.url, Options()).post("/start", Deadline.after(5)).status == 307
        assert len(server.requests) == 1


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with wire_server(well) as server:
        assert Http(server.url, Options()).get("/version", Deadline.after(5)).status == 200


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "", "http://"])
def test_what_is_no_address_is_refused_at_once(url):
    with pytest.raises(ConfigurationError, match="no address of an engine"):
        Http(url, Options())


def test_closing_twice_is_fine():
    http = Http("http://127.0.0.1:1", Options())
    http.close()
    http.close()


def test_after_a_servers_error_the_next_call_takes_a_new_connection():
    def error_then_reset(connection: socket.socket, request: bytes) -> bool:
        fails = request.startswith(b"POST /fails")
        if not fails and server.connections == 1:
            return False  # what uvicorn does with a connection whose last answer an exception made
        connection.sendall(OK.replace(b"200 OK", b"500 Internal Server Error") if fails else OK)
        return True

    with wire_server(error_then_reset) as server:
        http = Http(server.url, Options())
        assert http.post("/fails", Deadline.after(5)).status == 500
        assert http.post("/next", Deadline.after(5)).status == 200
        assert server.connections == 2


def test_a_call_that_was_given_up_is_taken_off_the_wire():
    ends = []

    def never(connection: socket.socket, request: bytes) -> bool:
        try:
            ends.append(connection.recv(1))
        except ConnectionResetError as reset:  # at once, instead of what is still unsent and then an end
            ends.append(reset)
        return False

    with wire_server(never) as server:
        with pytest.raises(DeadlineExceeded):
            Http(server.url, Options()).post("/x", Deadline.after(0.2), b"{}")
        patience = Deadline.after(5)
        while not ends and not patience.expired:
            threading.Event().wait(0.01)

    assert isinstance(ends[0], ConnectionResetError)


def plain(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    return False


def test_https_to_a_port_that_speaks_http_says_what_to_type():
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            plain(connection, b"")

    threading.Thread(target=answer, daemon=True).start()
    with listener, pytest.raises(EngineUnreachable) as caught:
        Http(f"https://127.0.0.1:{listener.getsockname()[1]}", Options()).get("/version", Deadline.after(5))
    assert "http://" in caught.value.hint


def test_a_host_that_no_resolver_takes_is_a_wrong_address():
    with pytest.raises(ConfigurationError, match="can't be sent"):
        Http("http://*", Options()).get("/version", Deadline.after(5))


def test_a_file_of_certificates_that_is_not_there_is_a_wrong_option():
    with pytest.raises(ConfigurationError, match="nowhere") as caught:
        Http("https://127.0.0.1:1", Options(tls_ca="/nowhere")).get("/version", Deadline.after(5))
    assert "tls_ca" in caught.value.hint


def test_a_header_that_can_not_be_sent_is_never_printed():
    options = Options(headers={"Authorization": f"sk-{120 + 3}\n"})
    with wire_server(well) as server, pytest.raises(ConfigurationError) as caught:
        Http(server.url, options).get("/version", Deadline.after(5))
    assert "sk-123" not in "".join(traceback.format_exception(caught.value))
    assert server.requests == []
