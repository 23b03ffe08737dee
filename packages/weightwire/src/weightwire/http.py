"""HTTP to one engine: every call meets its deadline, and only transport trouble raises.

``requests`` bounds each read, not the whole answer, so a peer that sends a byte now and then could hold a caller for
ever. Every call therefore runs on a thread of its own, and the waiter leaves at the deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from weightwire import addresses
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.exchange import Reply, Request
from weightwire.options import Options

if TYPE_CHECKING:
    from weightwire.transport import Connections

__all__ = ["Http", "Reply"]


class Http:
    """Calls to one base URL, over connections that are kept alive."""

    def __init__(self, url: str, options: Options) -> None:
        """Check *url*; connect later.

        Raises:
            ConfigurationError: it is no address of an engine.
        """
        self.url = addresses.checked(url)
        self._options = options

    def get(self, path: str, deadline: Deadline, params: Mapping[str, str] | None = None) -> Reply:
        """GET, and wait.

        Raises:
            EngineUnreachable: nothing answers, or the connection was cut.
            DeadlineExceeded: no answer in time.
        """
        return self._call("GET", path, deadline, params=params).result(deadline)

    def post(
        self, path: str, deadline: Deadline, body: bytes | None = None, *, params: Mapping[str, str] | None = None
    ) -> Reply:
        """POST, and wait; raises as :meth:`get`."""
        return self.call_post(path, deadline, body, params=params).result(deadline)

    def call_post(
        self, path: str, deadline: Deadline, body: bytes | None = None, *, params: Mapping[str, str] | None = None
    ) -> Call[Reply]:
        """POST, and return at once."""
        return self._call("POST", path, deadline, body=body, params=params)

    def close(self) -> None:
        """Close the idle connections. Idempotent."""
        self._connections.close()

    @cached_property
    def _connections(self) -> Connections:
        from weightwire.transport import Connections  # noqa: PLC0415 - see there

        return Connections(self.url, self._options)

    def _call(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Call[Reply]:
        connections = self._connections
        request = Request(method=method, url=self.url + path, params=params, body=body)
        return Call(lambda: connections.exchange(request, deadline), doing=request.doing)
