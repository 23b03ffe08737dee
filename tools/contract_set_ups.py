"""What the wire depends on in how a server is set up: who is numbered how, what it tells of itself and of errors."""

from __future__ import annotations

import ast

from contract_sources import Tree
from contract_syntax import Json, find_class, find_function, functions

PARALLEL = ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_size", "enable_eplb", "is_moe_model")
"""Fields of ``parallel_config`` that the probe reads."""

Facts = dict[str, Json]


def set_ups(tree: Tree) -> Facts:
    """Every such fact, by its id."""
    engines = tree.modules(r"distributed/weight_transfer/[a-z0-9_]+\.py")
    worker = find_class([tree.module("v1/worker/gpu_worker.py")], "Worker")
    update = find_function(worker, "update_weights")
    loading = [update, *_base_updates(engines)]
    return {
        "config.parallel.fields": _fields(tree),
        "errors.are_told": _catches_everything(tree),
        "nccl.counts_replicas": any("data_parallel_index" in ast.unparse(module) for module in engines),
        "server_info.shows_declared_variables": _shows_variables(tree),
        "worker.update.is_all_of_it": "finalize_layerwise_reload" in _text(update),
        "worker.update.waits_for_the_device": any("accelerator.synchronize()" in _text(node) for node in loading),
    }


def _base_updates(engines: list[ast.Module]) -> list[ast.AST]:
    """From 0.25 on the engine's own base class has the worker's part."""
    base = find_class(engines, "WeightTransferEngine")
    return [] if base is None else [method for method in functions(base) if method.name == "update_weights"]


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


def _fields(tree: Tree) -> list[Json]:
    node = find_class([tree.module("config/parallel.py")], "ParallelConfig")
    declared = {ast.unparse(item.target) for item in (node.body if node else []) if isinstance(item, ast.AnnAssign)}
    return list[Json](sorted(declared & set(PARALLEL)))


def _catches_everything(tree: Tree) -> bool:
    """Whether the web server words an exception that nothing else caught, instead of a bare 500."""
    modules = tree.modules(r"entrypoints/(.*/)?(api_server|register)\.py")
    calls = (node for module in modules for node in ast.walk(module) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func).endswith("exception_handler") and _first(call) == "Exception" for call in calls)


def _first(call: ast.Call) -> str:
    return ast.unparse(call.args[0]) if call.args else ""


def _shows_variables(tree: Tree) -> bool:
    """Whether ``/server_info`` dumps every variable that ``vllm.envs`` declares, ours among them."""
    return any("dir(envs)" in ast.unparse(module) for module in tree.modules(r"entrypoints/.*server_info.*\.py"))
