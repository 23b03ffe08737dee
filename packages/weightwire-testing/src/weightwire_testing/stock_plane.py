"""The data plane that meets vLLM's own ``nccl`` engine in a server with the stock shim. For tests; chosen by name only.

To the server it looks like an NCCL trainer: a key-value store with the pickled id of a communicator under vLLM's own
key, or the same id in the init call where the engines take it there, the warm-up all-reduce of one float, and then the
packs. Only that the id is the stand-in's (:mod:`weightwire_testing.gloo_id`), and the bytes go over gloo.
"""

from __future__ import annotations

import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError
from weightwire.messages import ChannelSpec, Rendezvous
from weightwire.planes import Watch
from weightwire.versions import release
from weightwire_torch.gloo_plane import GlooPlane
from weightwire_torch.nccl_rendezvous import KEY, pickled_unique_id

from weightwire_testing import gloo_id

ID_IN_THE_CALL = (0, 30)
"""The first release of vLLM whose init call takes the id itself, and then no store's address besides."""


class StockShimPlane(GlooPlane):
    """A gloo plane in the clothes of NCCL."""

    def prepare(self, spec: ChannelSpec, deadline: Deadline) -> Rendezvous:
        """Listen, and leave the id where vLLM looks for it."""
        met = super().prepare(spec, deadline)
        unique_id = gloo_id.encode(met.address, met.port)
        group = self._opened()
        if group.store is not None:
            group.store.set(KEY, pickled_unique_id(unique_id))  # type: ignore[arg-type]  # bytes are meant
        in_the_call = bool(spec.engines) and all(release(info.version) >= ID_IN_THE_CALL for info in spec.engines)
        return Rendezvous(
            address=met.address,
            port=0 if in_the_call else met.port,
            world_size=met.world_size,
            unique_id=unique_id if in_the_call else b"",
            timeout=met.timeout,
        )

    def join(self, deadline: Deadline, watch: Watch) -> None:
        """Connect to the workers, and take part in the warm-up of vLLM's communicator: every worker adds zero."""
        super().join(deadline, watch)
        one = torch.ones(1)
        self._opened().all_reduce(one)
        if one.item() != 1.0:
            raise ChannelError(f"The warm-up all-reduce gave {one.item()}, and not 1.0.")
