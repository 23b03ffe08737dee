"""The options of a session: one struct, the same keys as arguments, as ``WEIGHTWIRE_*`` and in TOML."""

from __future__ import annotations

from typing import Literal

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a session connects, transfers and fails.

    Every field can also be set by an environment variable (``WEIGHTWIRE_TIMEOUT=60``) or in ``weightwire.toml``
    (``timeout = 60``); an argument beats the environment, which beats the file (see :mod:`weightwire.settings`).

    Attributes:
        timeout: seconds that connecting, opening a channel, and a whole round may take, each.
        headers: HTTP headers sent with every call, such as ``Authorization`` for a proxy.
        tls_verify: check the server's certificate.
        tls_ca: a file with the certificates to trust; empty for the system's.
        control_plane: use this control plane, whatever the engine says it is; empty to choose.
        data_plane: use this data plane; empty to choose by the engine's backend.
        weight_source: use this weight source; empty to choose by the model.
        allow_untested: talk to engine releases outside the tested range, with a warning.
        expected: a checkpoint directory or index whose names and shapes the engine expects; empty to find out.
        dtype: refuse tensors whose dtype differs from the engine's (``refuse``), or cast them (``cast``).
        packed: pack several tensors per collective; by default where that is safe.
        bucket_bytes: size of a pack, in bytes; 0 to choose by what the engine runs (a stock one: 1 GiB or a little
            less, ours: 256 MiB on GPUs, else 32 MiB).
        num_buckets: packs that the receiver may work on at once; fewer where that is not safe.
        advertise: the address the workers should connect to; empty to choose.
        port: the port to listen on; 0 to choose, -1 for none, where the engine takes NCCL's id in the call (vLLM 0.30).
        interface: the network interface for the data; empty to choose.
        nccl_library: path of the NCCL to load; empty for torch's own.
    """

    timeout: float = 300.0
    headers: dict[str, str] = {}
    tls_verify: bool = True
    tls_ca: str = ""
    control_plane: str = ""
    data_plane: str = ""
    weight_source: str = ""
    allow_untested: bool = False
    expected: str = ""
    dtype: Literal["refuse", "cast"] = "cast"
    packed: bool | None = None
    bucket_bytes: int = 0
    num_buckets: int = 2
    advertise: str = ""
    port: int = 0
    interface: str = ""
    nccl_library: str = ""

    def __repr__(self) -> str:
        """As any struct's, but for the values of the headers: they may be secrets."""
        shown = msgspec.structs.asdict(self)
        shown["headers"] = dict.fromkeys(self.headers, "…") if isinstance(self.headers, dict) else "…"
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
