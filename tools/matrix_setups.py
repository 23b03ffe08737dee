"""What a cell of the matrix calls ``setup``: the server it is about, and the session that is opened with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from matrix_cells import Cell
from weightwire_testing.reference.settings import Backend, EngineSettings

Reported = dict[str, dict[str, str | int | bool | None]]


@dataclass(frozen=True)
class SetUp:
    """What differs from a plain server and a plain session.

    Attributes:
        reported: what the server says of itself in ``/server_info``.
        backend: its weight-transfer engine; None for the cell's.
        dev_mode: whether the routes for weights are there.
        asleep: whether it is put to sleep first.
        options: of the session.
        scalar: the model has a module that is a single number.
    """

    reported: Reported = field(default_factory=dict)
    backend: Backend | None = None
    dev_mode: bool = True
    asleep: bool = False
    options: dict[str, str | bool] = field(default_factory=dict)
    scalar: bool = False


SET_UPS = {
    "": SetUp(),
    "untested": SetUp(options={"allow_untested": True}),
    "experts": SetUp(reported={"parallel_config": {"is_moe_model": True}}),
    "mamba": SetUp(reported={"cache_config": {"mamba_block_size": 256}}),
    "lora": SetUp(reported={"lora_config": {"max_loras": 1}}),
    "eplb": SetUp(reported={"parallel_config": {"enable_eplb": True}}),
    "external-lb": SetUp(reported={"parallel_config": {"data_parallel_external_lb": True}}),
    "other-backend": SetUp(reported={"weight_transfer_config": {"backend": "ipc"}}),
    "no-transfer": SetUp(backend=Backend.NONE),
    "no-dev-mode": SetUp(dev_mode=False),
    "asleep": SetUp(asleep=True),
    "plane-vllm": SetUp(options={"control_plane": "vllm"}),
    "plane-vllm-legacy": SetUp(options={"control_plane": "vllm-legacy"}),
    "packed": SetUp(options={"packed": True}),
    "scalar": SetUp(scalar=True, reported={"model_config": {"model": "nobody/knows"}}),
}

LAYOUTS = {"tp1": (1, 1), "tp2": (2, 1), "dp2": (1, 2)}
"""Workers of a replica, and replicas."""


def engine_settings(cell: Cell, checkpoint: str) -> EngineSettings:
    """The reference engine that stands for the cell's server."""
    extra = SET_UPS[cell.setup]
    workers, replicas = LAYOUTS[cell.layout]
    backend = Backend.NCCL if cell.engine == "stock" else Backend.WEIGHTWIRE
    return EngineSettings(
        checkpoint=checkpoint,
        version=cell.vllm,
        backend=extra.backend or backend,
        workers=workers,
        data_parallel=replicas,
        dev_mode=extra.dev_mode,
        reported=extra.reported,
    )


def session_options(cell: Cell) -> dict[str, object]:
    """The options of a session with it."""
    plane = {"data_plane": cell.plane} if cell.plane == "stock-shim" else {}
    return {"timeout": 60.0, "bucket_bytes": 100_000, **plane, **SET_UPS[cell.setup].options}
