from __future__ import annotations

import socket

import pytest
from weightwire.deadlines import Deadline
from weightwire.errors import DeadlineExceeded, EngineRefused, EngineUnreachable
from weightwire.http import Http
from weightwire.options import Options
from weightwire.vllm.identify import version


def test_a_vllm_tells_its_version(http, vllm, soon):
    vllm.version = "0.32.0+cpu"
    vllm.dev_mode = False
    assert version(http, soon) == "0.32.0+cpu"
    assert [call.path for call in vllm.calls] == ["/version"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"detail": "Not Found"}),
        (200, {"gitVersion": "v1.30"}),
        (200, {"version": 3}),
        (200, ["0.32.0"]),
        (200, b"<html></html>"),
    ],
)
def test_anything_else_is_no_vllm(http, vllm, soon, status, body):
    vllm.instead["/version"] = (status, body)
    assert version(http, soon) is None


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_door_that_is_shut_says_nothing_of_what_is_behind_it(http, vllm, soon, status):
    vllm.instead["/version"] = (status, {"detail": "not now"})
    with pytest.raises(EngineRefused) as caught:
        version(http, soon)
    assert (caught.value.status, caught.value.server_text) == (status, "not now")


def test_nobody_there_raises(soon):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EngineUnreachable):
            version(Http(f"http://127.0.0.1:{taken.getsockname()[1]}", Options()), soon)


def test_a_server_that_says_nothing_meets_the_deadline(http, vllm):
    vllm.silent.add("/version")
    with pytest.raises(DeadlineExceeded):
        version(http, Deadline.after(0.2))
