"""Requests in flight while weights change."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from types import TracebackType
from typing import Self

import requests

STREAMS = 8
TOKENS = 400


class Load:
    """Streams of tokens, one after the other on each of a few connections.

    Attributes:
        finished: requests that came to their end with every token.
        broken: what went wrong in others.
        stamps: when each token came, in seconds of ``time.monotonic()``.
    """

    def __init__(self, url: str, prompt: list[int], streams: int = STREAMS) -> None:
        """Start nothing yet."""
        self.finished = 0
        self.broken: list[str] = []
        self.stamps: list[float] = []
        self._url = url
        self._prompt = prompt
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(streams)]

    def __enter__(self) -> Self:
        """Start, and wait for the first tokens."""
        for thread in self._threads:
            thread.start()
        until = time.monotonic() + 20.0
        while len(self.stamps) < len(self._threads) and time.monotonic() < until:
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let each stream come to its end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=60.0)

    def longest_gap(self, began: float, ended: float) -> float:
        """The longest time without a token between two moments, in seconds."""
        inside = [began, *sorted(stamp for stamp in self.stamps if began <= stamp <= ended), ended]
        return max(later - earlier for earlier, later in pairwise(inside))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                got = self._stream()
            except (requests.RequestException, ValueError) as error:
                self.broken.append(repr(error)[:200])
                return
            if got == TOKENS:
                self.finished += 1
            else:
                self.broken.append(f"{got} of {TOKENS} tokens")

    def _stream(self) -> int:
        body = {"prompt": self._prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        body |= {"return_token_ids": True}
        got = 0
        with requests.post(f"{self._url}/v1/completions", json=body, stream=True, timeout=60.0) as reply:
            for line in reply.iter_lines():
                if line.startswith(b"data: {"):
                    self.stamps.append(time.monotonic())
                    got += sum(len(choice.get("token_ids") or []) for choice in json.loads(line[6:])["choices"])
        return got
