"""What the wire depends on in a vLLM, as facts with stable ids."""

from __future__ import annotations

import ast
from collections.abc import Callable

from contract_routes import routes
from contract_set_ups import set_ups
from contract_sources import Tree
from contract_syntax import (
    Json,
    assigns,
    constants,
    decorators,
    fields,
    find_class,
    find_function,
    functions,
    message,
    parameters,
    raised,
    value,
)

ENGINES = r"distributed/weight_transfer/[a-z0-9_]+\.py"
WORKER = "v1/worker/gpu_worker.py"
CORE = "v1/engine/core.py"

Facts = dict[str, Json]


def facts(tree: Tree) -> Facts:
    """Every fact, by its id, sorted."""
    readers: list[Callable[[Tree], Facts]] = [routes, _payloads, _backends, _engine, _worker, _core, _packing, set_ups]
    found: Facts = {}
    for reader in readers:
        found |= reader(tree)
    return dict(sorted(found.items()))


def _payloads(tree: Tree) -> Facts:
    """The dataclasses that the nccl engine parses its payloads into; unknown keys are refused by all of them."""
    modules = tree.modules(ENGINES)
    known = constants(modules, "DEFAULT_PACKED")
    found: Facts = {}
    for what, name in (("init_info", "NCCLWeightTransferInitInfo"), ("update_info", "NCCLWeightTransferUpdateInfo")):
        node = find_class(modules, name)
        if node is not None:
            found[f"nccl.{what}.fields"] = fields(node, modules, known=known)
            found[f"nccl.{what}.keyword_only"] = any("kw_only=True" in text for text in decorators(node))
    return found | {f"nccl.{name.lower()}": default for name, default in known.items()}


def _backends(tree: Tree) -> Facts:
    node = find_class([tree.module("config/weight_transfer.py")], "WeightTransferConfig")
    annotation = next(
        (item.annotation for item in (node.body if node else []) if isinstance(item, ast.AnnAssign)), None
    )
    text = ast.unparse(annotation) if annotation else ""
    names = [
        value(call.args[0])
        for call in ast.walk(tree.module("distributed/weight_transfer/factory.py"))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "WeightTransferEngineFactory.register_engine"
    ]
    return {
        "backend.type": text,
        "backend.takes_any_name": text.split(" | ")[-1] == "str",
        "backend.registered": list[Json](sorted(str(name) for name in names)),
    }


def _engine(tree: Tree) -> Facts:
    """What a class must offer to be a worker's weight-transfer engine."""
    node = find_class(tree.modules(ENGINES), "WeightTransferEngine")
    methods = [] if node is None else list(functions(node))
    abstract = {m.name: list[Json](parameters(m)) for m in methods if "abstractmethod" in decorators(m)}
    return {
        "engine.abstract_methods": {name: abstract[name] for name in sorted(abstract)},
        "engine.constructor": list[Json](parameters(find_function(node, "__init__"))),
    }


def _worker(tree: Tree) -> Facts:
    worker = find_class([tree.module(WORKER)], "Worker")
    names = ("start_weight_update", "_start_weight_update", "update_weights", "finish_weight_update")
    start, private_start, update, finish = (find_function(worker, name) for name in names)
    return {
        "worker.start.parameters": list[Json](parameters(start)),
        "worker.start.refusals": raised(private_start or start, "RuntimeError"),
        "worker.finish.refusals": raised(finish, "RuntimeError"),
        "worker.update.failure_closes_the_update": update is not None
        and assigns(update, "_weight_update_active", wanted=False),
        "worker.update.takes_a_list": update is not None and "list[" in ast.unparse(update.args),
        "worker.shuts_the_engine_down": find_function(worker, "shutdown_weight_transfer_engine") is not None,
        "worker.check_health": find_function(tree.module("v1/worker/worker_base.py"), "check_health") is not None,
    }


def _core(tree: Tree) -> Facts:
    core, states = tree.module(CORE), tree.module("v1/engine/__init__.py")
    modes = constants([states], "PauseMode").get("PauseMode")
    sleeping = find_function(find_class([core], "EngineCore"), "is_sleeping")
    answers = (
        [ast.unparse(node.value) for node in ast.walk(sleeping) if isinstance(node, ast.Return) and node.value]
        if sleeping
        else []
    )
    version = [
        value(node.value)
        for node in ast.walk(core)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self._weight_version"
    ]
    return {
        "pause.modes": modes,
        "pause.clears_the_connector": "reset_connector=" in ast.unparse(find_function(core, "_reset_caches") or core),
        "sleep.is_sleeping": list[Json](answers),
        "sleep.metric": "vllm:engine_sleep_state" in _strings(tree.module("v1/metrics/loggers.py")),
        "weight_version.at_start": version[0] if version else None,
    }


def _packing(tree: Tree) -> Facts:
    """The parts of the data plane that the rendezvous and the packs depend on."""
    packing = tree.module("distributed/weight_transfer/packed_tensor.py")
    views = sorted({ast.unparse(n) for n in ast.walk(packing) if isinstance(n, ast.Call) and _is_view_of_shape(n)})
    store = find_function(tree.module("distributed/utils.py"), "broadcast_obj")
    keys = [message(n) for n in ast.walk(store) if isinstance(n, ast.JoinedStr)] if store else []
    return {
        "packed.scalars_fail": any("*shape" in text for text in views),
        "packed.functions": list[Json](sorted(function.name for function in functions(packing))),
        "rendezvous.store_keys": list[Json](sorted(set(keys))),
    }


def _is_view_of_shape(node: ast.Call) -> bool:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return called in {"view", "reshape"} and any("shape" in ast.unparse(argument) for argument in node.args)


def _strings(module: ast.Module) -> set[object]:
    return {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
