"""An engine of another torch, so of another release of NCCL, and a trainer that keeps its own: refused, and the cure.

``python exp_other_torch.py CONTEXT.json SERVER``, with the engine's libnccl as the option `nccl_library` of every
session, which ``run_gpu.py`` sets where a site brings one. vLLM 0.27 and later need torch 2.13, and so NCCL 2.29.7.
"""

from __future__ import annotations

import sys

import torch
import weightwire
from exp_releases import brought, cured, refused
from gpu_context import Context, Results, main
from gpu_models import small_model
from weightwire_torch import nccl_version


def other_torch(context: Context, results: Results) -> None:
    """What both sides run; refuse it; join with the engine's library."""
    server = sys.argv[2]
    engines = weightwire.inspect(context.servers[server].url).nccl_version
    ours = nccl_version.ours()
    results.tell("releases", torch=torch.__version__, ours=ours, engines=engines, brought=brought(context))
    if not engines:
        results.tell("the engine does not tell its release of NCCL", ok=False)
        return
    if nccl_version.numbers(engines) == nccl_version.numbers(ours):
        results.tell("both run one release: there is nothing to refuse")
        return
    model = small_model(2, context.device)
    with results.step("a mismatch is refused"):
        refused(context, results, server, model, library="")
    with results.step("the cure: the trainer loads the engine's library beside torch's"):
        cured(context, results, server, model)


if __name__ == "__main__":
    main("other-torch", other_torch)
