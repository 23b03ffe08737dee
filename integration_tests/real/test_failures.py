"""A round that fails on a real server: it is left torn and paused, and the next push mends it without a restart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from weightwire.errors import UpdateFailed
from weightwire.messages import Manifest
from weightwire.options import Options
from weightwire.planes import RankGroup
from weightwire_torch.sources import ModuleSource

SECONDS = 60


class Failing:
    """The weights of a module, and no memory left in the middle of them, once."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._source = ModuleSource(module, Options())
        self.fails_at = len(self._source.manifest().groups) // 2

    @property
    def ranks(self) -> RankGroup:
        return self._source.ranks

    def manifest(self) -> Manifest:
        return self._source.manifest()

    def gather(self, group: int) -> Sequence[torch.Tensor]:
        if group == self.fails_at:
            raise RuntimeError("there is no memory left")
        return self._source.gather(group)


def asked_from_outside(url: str) -> dict[str, object]:
    """What ``weightwire status`` says of the server, in a process of its own."""
    command = Path(sys.executable).with_name("weightwire")
    told = subprocess.run([command, "status", "--json", url], capture_output=True, timeout=SECONDS, check=False)
    return json.loads(told.stdout)["engines"][0]["info"] | {"exit code": told.returncode}


@pytest.mark.quick
def test_a_source_that_raises_in_mid_stream_leaves_a_torn_server_that_the_next_push_mends(served):
    source = Failing(served.b.module())
    start, stop = source.manifest().groups[source.fails_at]
    names = [tensor.name for tensor in source.manifest().tensors[start:stop]]
    pid = served.server.pid
    with served.connect(source) as session:
        with pytest.raises(UpdateFailed) as caught:
            session.push("half of it")
        assert names[0] in str(caught.value)
        assert "there is no memory left" in str(caught.value)
        assert caught.value.engine_states == {served.url: "torn"}
        assert served.paused()
        told = asked_from_outside(served.url)
        assert (told["state"], told["paused"], told["exit code"]) == ("torn", True, 3)

        source.fails_at = -1
        assert session.push("all of it").committed
    assert (served.server.running, served.server.pid) == (True, pid)
    assert not served.paused()
    assert served.distance(served.b) < served.same
    told = asked_from_outside(served.url)
    assert (told["state"], told["paused"], told["exit code"]) == ("whole", False, 0)
