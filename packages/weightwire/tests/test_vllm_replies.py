from __future__ import annotations

import pickle

import pytest
from weightwire.http import Reply
from weightwire.vllm.replies import SHORT, decode, refused, server_text

WORKER = "Call to collective_rpc method failed: Worker failed with error 'no such name'"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"' + WORKER.encode() + b'","type":"InternalServerError","code":500}}', WORKER),
        (b'{"error":"Failed to pause generation: x"}', "Failed to pause generation: x"),
        (b'{"detail":"Invalid JSON format"}', "Invalid JSON format"),
        (b'{"detail":[{"type":"missing"}]}', '[{"type":"missing"}]'),
        (b"Internal Server Error", "Internal Server Error"),
        (b"<html>\n bad gateway </html>\n", "<html>\n bad gateway </html>"),
        (b"[1, 2]", "[1, 2]"),
        (b"", ""),
    ],
)
def test_the_servers_words_come_without_the_json_around_them(body, words):
    assert server_text(Reply(500, body)) == words


def test_a_page_that_is_not_vllms_is_cut():
    assert len(server_text(Reply(502, b"x" * 100_000))) == SHORT


def test_a_refusal_carries_status_words_and_hint_and_survives_a_pickle():
    error = refused(Reply(500, b'{"detail":"no"}'), "POST http://h/pause", hint="do this")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.server_text, copy.hint) == (500, "no", "do this")
    assert "POST http://h/pause was refused with status 500" in str(copy)


def test_a_dead_engine_is_called_lost():
    body = b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above)."}}'
    error = refused(Reply(500, body), "GET http://h/is_paused")
    assert "dead" in error.message
    assert "lost" in error.message
    assert "restart" in error.hint


@pytest.mark.parametrize("status", [401, 403])
def test_a_guard_in_front_is_named(status):
    assert "`headers`" in refused(Reply(status, b"no"), "POST http://h/pause").hint


def test_a_success_of_another_shape_is_garbled():
    with pytest.raises(Exception, match="not as vLLM answers") as caught:
        decode(Reply(200, b'"hello"'), dict[str, object], call="POST http://h/pause")
    assert type(caught.value).__name__ == "GarbledReply"
    assert caught.value.server_text == '"hello"'


@pytest.mark.parametrize("body", [b"Internal Server Error", b""])
def test_a_server_that_does_not_say_why_is_sent_to_its_log(body):
    error = refused(Reply(500, body), "POST http://h/update_weights", hint="and this")
    assert "log says why" in error.hint
    assert error.hint.endswith("and this")
