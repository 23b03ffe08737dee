"""The receiver of the gloo plane, for the data plane suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from weightwire.deadlines import Deadline
from weightwire.messages import TensorMeta
from weightwire_torch.gloo_group import GlooGroup
from weightwire_torch.receiver import receive
from weightwire_torch.ring import Ring

from weightwire_testing.conformance.receiving import Job


class GlooReceiver:
    """A member of a gloo group."""

    def __init__(self, job: Job) -> None:
        """Join.

        Raises:
            ChannelError: the group did not come together.
        """
        meeting = job.rendezvous
        self._geometry = job.geometry
        self._ring = Ring.fitting(job.tensors, job.geometry)
        self._group = GlooGroup.connect(
            meeting.address,
            meeting.port,
            rank=job.rank,
            world_size=meeting.world_size,
            timeout=meeting.timeout,
        )
        self._group.join(Deadline.after(meeting.timeout))

    def receive(self, tensors: Sequence[TensorMeta]) -> Iterator[tuple[str, Tensor]]:
        """Receive one window."""
        for weights in receive(self._group, tensors, geometry=self._geometry, ring=self._ring):
            yield from weights

    def close(self) -> None:
        """Leave."""
        self._group.close()


def join(job: Job) -> GlooReceiver:
    """Join the group of *job*."""
    return GlooReceiver(job)
