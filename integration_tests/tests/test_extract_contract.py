"""The reader of contracts, on a package that is made up for it."""

from __future__ import annotations

import zipfile

import pytest
from contract_facts import facts
from contract_sources import DirectorySources, Tree, open_tree
from extract_contract import main

ROUTER = """
@router.post("/init_weight_transfer_engine")
async def init(raw_request: Request):
    body = await raw_request.json()
    init_info = body.get("init_info")
    if init_info is None:
        raise HTTPException(detail="Missing 'init_info' in request body")
    return JSONResponse(content={"message": "ready"})


@router.post("/finish_weight_update")
async def finish(raw_request: Request, weight_version: Annotated[str | None, Body(embed=True)] = None):
    return JSONResponse(content={"message": "done"})


@router.post("/update_weights")
async def update(raw_request: Request, update_info: Annotated[dict, Body(embed=True)]):
    return JSONResponse(content={"message": "updated", "count": len(update_info)})


@router.post("/pause")
async def pause(raw_request: Request, mode: Annotated[Mode, Query()] = "abort", wait: bool = Query(False)):
    try:
        ...
    except Exception as error:
        return JSONResponse(content={"error": str(error)})
    return JSONResponse(content={"status": "paused"})


@router.get("/brand_new")
async def brand_new():
    return JSONResponse(content={"answer": 42})
"""

PACKAGE = {
    "_version.py": "__version__ = version = '0.99.0+cpu'\n",
    "entrypoints/rl/online/api_router.py": ROUTER,
    "entrypoints/serve/instrumentator/basic.py": """
@router.get("/version")
def version(): ...
@router.get("/load")
def load(): ...
""",
    "entrypoints/serve/server_info.py": "def variables(): return [key for key in dir(envs)]",
    "entrypoints/openai/api_server.py": "app.exception_handler(Exception)(answer)",
    "config/parallel.py": "class ParallelConfig:\n    data_parallel_size: int = 1\n    other: int = 2\n",
    "distributed/weight_transfer/base.py": """
class WeightTransferUpdateInfo(ABC):
    _: KW_ONLY
    kind: str = "dense"

class WeightTransferEngine(ABC):
    def __init__(self, config, model): ...
    @abstractmethod
    def receive_weights(self, update_info): ...
    def parse(self, text): ...
    def update_weights(self, update_info):
        torch.accelerator.synchronize()
""",
    "distributed/weight_transfer/nccl_engine.py": """
@dataclass(kw_only=True)
class NCCLWeightTransferInitInfo:
    world_size: int
    secret: str | None = field(default=None, repr=False)
    size: int = DEFAULT_PACKED_BUFFER_SIZE_BYTES

@dataclass
class NCCLWeightTransferUpdateInfo(WeightTransferUpdateInfo):
    names: list[str]
    shapes: list = field(default_factory=list)
""",
    "distributed/weight_transfer/packed_tensor.py": """
DEFAULT_PACKED_BUFFER_SIZE_BYTES = 1024 * 1024
DEFAULT_PACKED_NUM_BUFFERS = 2
def unpack(tensor, shape): return tensor.view(*shape)
""",
    "distributed/weight_transfer/factory.py": 'WeightTransferEngineFactory.register_engine("nccl", "a", "b")',
    "config/weight_transfer.py": 'class WeightTransferConfig:\n    backend: Literal["nccl"] | str = "nccl"\n',
    "distributed/utils.py": 'def broadcast_obj(self, src):\n    self.store.get(f"from/{src}/{self.n}")\n',
    "v1/worker/worker_base.py": "class WorkerBase:\n    def check_health(self): ...\n",
    "v1/worker/gpu_worker.py": """
class Worker:
    def start_weight_update(self):
        if self._weight_update_active:
            raise RuntimeError("already " "active")
        self._weight_update_active = True
    def update_weights(self, update_info: dict | list[dict]):
        self._weight_update_active = False
    def finish_weight_update(self):
        raise RuntimeError(f"{self.name} is not open")
""",
    "v1/engine/__init__.py": 'PauseMode = Literal["abort", "keep"]\n',
    "v1/engine/core.py": """
class EngineCore:
    def __init__(self): self._weight_version = "default"
    def is_sleeping(self): return self.asleep
    def _reset_caches(self): self.reset(reset_connector=True)
""",
    "v1/metrics/loggers.py": 'NAME = "vllm:engine_sleep_state"\n',
}


@pytest.fixture
def package(tmp_path):
    """The package, in a directory."""
    root = tmp_path / "site-packages"
    for path, text in PACKAGE.items():
        (root / "vllm" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "vllm" / path).write_text(text)
    return root


@pytest.fixture
def found(package):
    """Its facts."""
    return facts(Tree(DirectorySources(package)))


def test_a_body_read_by_hand_is_required_and_so_is_a_key_that_is_missed(found):
    body = found["route./init_weight_transfer_engine"]["body"]
    assert body == {"kind": "json", "required": True, "keys": {"init_info": {"required": True, "default": None}}}


def test_a_typed_body_is_required_if_one_of_its_keys_is(found):
    optional, required = found["route./finish_weight_update"]["body"], found["route./update_weights"]["body"]
    assert (optional["kind"], optional["required"]) == ("fastapi", False)
    assert (required["kind"], required["required"]) == ("fastapi", True)


def test_parameters_are_read_from_either_way_of_declaring_them(found):
    assert found["route./pause"]["query"] == {
        "mode": {"required": False, "default": "abort"},
        "wait": {"required": False, "default": False},
    }


def test_successes_are_kept_without_the_errors(found):
    assert found["route./pause"]["success"] == [{"status": "paused"}]
    assert found["route./update_weights"]["success"] == [{"message": "updated", "count": "…"}]


def test_a_new_route_of_the_router_shows_up_and_others_do_not(found):
    assert "route./brand_new" in found
    assert "route./version" in found
    assert "route./load" not in found


def test_fields_come_with_their_bases_and_their_defaults(found):
    assert found["nccl.init_info.fields"] == {
        "world_size": {"type": "int", "required": True},
        "secret": {"type": "str | None", "required": False, "default": None},
        "size": {"type": "int", "required": False, "default": 1048576},
    }
    assert found["nccl.update_info.fields"]["kind"] == {"type": "str", "required": False, "default": "dense"}
    assert found["nccl.update_info.fields"]["shapes"]["default"] == "list()"


def test_what_the_worker_and_the_core_do_is_read_off_their_code(found):
    assert found["worker.start.refusals"] == ["already active"]
    assert found["worker.finish.refusals"] == ["{…} is not open"]
    assert found["worker.update.failure_closes_the_update"] is True
    assert found["worker.update.takes_a_list"] is True
    assert found["engine.abstract_methods"] == {"receive_weights": ["update_info"]}
    assert found["weight_version.at_start"] == "default"
    assert found["sleep.is_sleeping"] == ["self.asleep"]
    assert found["rendezvous.store_keys"] == ["from/{…}/{…}"]
    assert found["packed.scalars_fail"] is True


def test_how_a_server_is_set_up_is_read_off_its_code(found, package):
    assert found["config.parallel.fields"] == ["data_parallel_size"]
    assert found["errors.are_told"] is True
    assert found["server_info.shows_declared_variables"] is True
    assert found["nccl.counts_replicas"] is False
    assert found["worker.update.is_all_of_it"] is False
    assert found["worker.update.waits_for_the_device"] is True
    server = package / "vllm/entrypoints/openai/api_server.py"
    server.write_text("app.exception_handler(HTTPException)(answer)")
    assert facts(Tree(DirectorySources(package)))["errors.are_told"] is False


def test_a_two_call_release_is_told_by_its_worker(package):
    worker = package / "vllm/v1/worker/gpu_worker.py"
    two_calls = worker.read_text().replace("self._weight_update_active = False", "finalize_layerwise_reload(model)")
    worker.write_text(two_calls)
    engine = package / "vllm/distributed/weight_transfer/nccl_engine.py"
    engine.write_text(engine.read_text() + "rank = config.data_parallel_index\n")
    read = facts(Tree(DirectorySources(package)))
    assert read["worker.update.is_all_of_it"] is True
    assert read["nccl.counts_replicas"] is True


def test_a_wheel_is_read_in_place_and_gives_the_same(package, found, tmp_path):
    wheel = tmp_path / "vllm-0.99.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, path.relative_to(package))
    with open_tree(str(wheel)) as tree:
        assert (tree.version(), facts(tree)) == ("0.99.0", found)


def test_the_check_passes_until_a_fact_changes(package, tmp_path, capsys):
    recorded = ["--contracts", str(tmp_path)]
    assert main([*recorded, "--check", str(package)]) == 1
    assert "no contract is recorded" in capsys.readouterr().out
    assert main([*recorded, "--write", str(package)]) == 0
    assert main([*recorded, "--check", str(package)]) == 0
    worker = package / "vllm/v1/worker/gpu_worker.py"
    worker.write_text(worker.read_text().replace("already ", "quite "))
    capsys.readouterr()
    assert main([*recorded, "--check", str(package)]) == 1
    assert "worker.start.refusals" in capsys.readouterr().out


def test_a_new_release_is_compared_with_the_newest_known_one(package, capsys):
    assert main([str(package)]) == 0
    printed = capsys.readouterr().out
    assert "vllm 0.99.0 against 0.33.0" in printed
    assert "route./brand_new" in printed
    assert "breaches" in printed


@pytest.mark.parametrize("what", ["nowhere/at/all", "latest"])
def test_what_is_neither_path_nor_version_is_refused(what):
    with pytest.raises(SystemExit, match="neither a path nor a version"):
        main([what])
