"""The receiver's modules see a torch whose "cuda" is the CPU; everybody else sees torch."""

from __future__ import annotations

import torch
from weightwire_testing.cpu_torch import CpuStream, cpu_torch


def test_buffers_for_cuda_are_made_on_the_cpu():
    seen = cpu_torch()
    assert seen.empty(3, dtype=torch.uint8, device="cuda").device.type == "cpu"
    assert seen.empty((2, 3), device=torch.device("meta")).is_meta
    assert seen.empty(3).shape == (3,)


def test_the_current_device_is_one_that_vllms_communicator_takes():
    assert cpu_torch().accelerator.current_device_index() == torch.device("cpu")


def test_streams_are_over_before_they_begin():
    seen = cpu_torch()
    stream = seen.cuda.Stream(device="cuda", priority=-1)
    with seen.cuda.stream(stream):
        stream.wait_stream(seen.cuda.current_stream())
        stream.synchronize()
    assert stream.cuda_stream == 0
    assert isinstance(seen.cuda.current_stream(), CpuStream)


def test_everything_else_is_torchs_own_and_torch_stays_as_it_is():
    seen = cpu_torch()
    assert seen.float32 is torch.float32
    assert seen.cuda.is_available is torch.cuda.is_available
    assert seen.accelerator.is_available is torch.accelerator.is_available
    assert torch.empty is not seen.empty
