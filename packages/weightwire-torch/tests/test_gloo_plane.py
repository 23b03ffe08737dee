"""The plane's own part: what it tells the workers, and what it does when it is not open."""

from __future__ import annotations

import pytest
import torch
from weightwire.deadlines import Deadline
from weightwire.errors import ChannelError, DeadlineExceeded
from weightwire.messages import ChannelSpec, PackGeometry
from weightwire.planes import DataPlane, ReportsProgress
from weightwire_torch.gloo_plane import GlooPlane, usable
from weightwire_torch.manifest import manifest_of

GEOMETRY = PackGeometry(packed=True, buffer_bytes=100, num_buffers=2)


def spec(**changes: object) -> ChannelSpec:
    fields = {
        "manifest": manifest_of([("a", torch.zeros(3))]),
        "geometry": GEOMETRY,
        "world_size": 2,
        "engines": (),
        "timeout": 7.0,
    }
    return ChannelSpec(**{**fields, **changes})


def test_it_keeps_to_the_protocols() -> None:
    assert isinstance(GlooPlane(), DataPlane)
    assert isinstance(GlooPlane(), ReportsProgress)
    assert usable() == ""


def test_the_rendezvous_says_where_and_how() -> None:
    plane = GlooPlane()
    where = plane.prepare(spec(), Deadline.after(5.0))
    assert (where.address, where.world_size, where.timeout) == ("127.0.0.1", 2, 7.0)
    assert where.port > 0
    assert where.extra == {"transport": "gloo"}
    plane.close(Deadline.after(5.0))


def test_an_address_to_advertise_is_bound_and_said() -> None:
    plane = GlooPlane()
    assert plane.prepare(spec(address="localhost"), Deadline.after(5.0)).address == "localhost"
    plane.close(Deadline.after(5.0))


def test_preparing_again_leaves_the_first_group() -> None:
    plane = GlooPlane()
    first = plane.prepare(spec(), Deadline.after(5.0))
    second = plane.prepare(spec(port=first.port), Deadline.after(5.0))  # the port is free again
    assert second.port == first.port
    plane.close(Deadline.after(5.0))


def test_a_worker_that_does_not_come_is_late_by_the_deadline() -> None:
    plane = GlooPlane()
    plane.prepare(spec(), Deadline.after(5.0))
    with pytest.raises(DeadlineExceeded, match="rank 1"):
        plane.join(Deadline.after(0.2), lambda: None)
    plane.abort()


def test_a_plane_that_is_not_open_says_how_to_open_it(make_source, layers, channel) -> None:
    plane = GlooPlane()
    plane.abort()
    plane.close(Deadline.after(1.0))
    with pytest.raises(ChannelError, match="recover"):
        plane.join(Deadline.after(1.0), lambda: None)
    source = make_source(layers())
    opened = channel(source.manifest())
    with pytest.raises(ChannelError, match="recover"):
        opened.send(source)
