"""The POSTs of the four-phase form, beyond those that all releases share (:mod:`weightwire.vllm.posts`). Pure."""

from __future__ import annotations

import msgspec
from weightwire.vllm.posts import Post

SHUTDOWN = Post(path="/shutdown_weight_transfer_engine", answer=("message", "Weight transfer shut down"))


def start(body: bytes | None = None) -> Post:
    """Open an update."""
    return Post(path="/start_weight_update", answer=("message", "Weight update started"), body=body)


def finish(weight_version: str | None = None) -> Post:
    """Close an update; *weight_version* becomes the server's, None leaves it as it is."""
    body = None if weight_version is None else msgspec.json.encode({"weight_version": weight_version})
    return Post(path="/finish_weight_update", answer=("message", "Weight update finished"), body=body)


def mark(weight_version: str) -> Post:
    """Set the version that the server reports."""
    return Post(
        path="/update_weight_version",
        answer=("success", True),
        body=msgspec.json.encode({"new_version": weight_version}),
    )
