"""The HTTP routes of a vLLM, as facts: verb, query parameters, body keys, success bodies."""

from __future__ import annotations

import ast

from contract_sources import Tree
from contract_syntax import Function, Json, annotated, defaults, functions, parameters, value

RL_ROUTE = "/init_weight_transfer_engine"
"""The router that holds this one is taken whole, so that a new route in it shows up in a difference."""

OTHERS = ("/version", "/server_info", "/is_sleeping", "/collective_rpc")
"""Routes of other routers that the control plane calls."""

VERBS = ("get", "post", "put", "delete")


def routes(tree: Tree) -> dict[str, Json]:
    """``route.<path>`` by the routes' paths."""
    found: dict[str, Json] = {}
    for module in tree.modules(r"entrypoints/.*(router|basic|server_info)\.py"):
        here = {path: (verb, function) for function in functions(module) for verb, path in _decorated(function)}
        wanted = here if RL_ROUTE in here else {path: here[path] for path in OTHERS if path in here}
        found |= {f"route.{path}": _route(verb, function) for path, (verb, function) in wanted.items()}
    return found


def _decorated(function: Function) -> list[tuple[str, str]]:
    found = []
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in VERBS:
            path = value(call.args[0]) if call.args else ""
            if ast.unparse(call.func.value) == "router" and isinstance(path, str):
                found.append((call.func.attr.upper(), path))
    return found


def _route(verb: str, function: Function) -> Json:
    return {
        "verb": verb,
        "query": _declared(function, "Query"),
        "body": _body(function),
        "success": _success(function),
    }


def _declared(function: Function, kind: str) -> dict[str, Json]:
    """Parameters that FastAPI takes from the query or the body, by the marker in annotation or default."""
    given, typed = defaults(function), annotated(function)
    found: dict[str, Json] = {}
    for name in parameters(function):
        default = given.get(name)
        marked = default is not None and ast.unparse(default).startswith(f"{kind}(")
        if marked and isinstance(default, ast.Call):
            found[name] = {"required": not default.args, "default": value(default.args[0]) if default.args else None}
        elif f"{kind}(" in typed.get(name, ""):
            found[name] = {"required": default is None, "default": value(default)}
    return found


def _body(function: Function) -> Json:
    """``none``; ``json``: any bytes that parse, read by hand; ``fastapi``: typed, and with its content type."""
    declared = _declared(function, "Body")
    if declared:
        needed = any(isinstance(key, dict) and key["required"] for key in declared.values())
        return {"kind": "fastapi", "required": needed, "keys": declared}
    if any(isinstance(node, ast.Await) and "raw_request.json()" in ast.unparse(node) for node in ast.walk(function)):
        return {"kind": "json", "required": True, "keys": _read_by_hand(function)}
    return {"kind": "none", "required": False, "keys": {}}


def _read_by_hand(function: Function) -> dict[str, Json]:
    """Keys read with ``body.get``; one whose absence is answered with an error is required."""
    text = ast.unparse(function)
    found: dict[str, Json] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "body.get" and node.args:
            name = str(value(node.args[0]))
            found[name] = {
                "required": f"Missing '{name}'" in text,
                "default": value(node.args[1]) if len(node.args) > 1 else None,
            }
    return found


def _success(function: Function) -> Json:
    """The literal bodies answered; a part that varies reads ``…``."""
    bodies: list[Json] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "JSONResponse":
            content = next((keyword.value for keyword in node.keywords if keyword.arg == "content"), None)
            if isinstance(content, ast.Dict) and not _answers_an_error(content):
                bodies.append(
                    {
                        str(value(key)): value(item) if isinstance(item, ast.Constant) else "…"
                        for key, item in zip(content.keys, content.values, strict=True)
                    }
                )
    return bodies


def _answers_an_error(content: ast.Dict) -> bool:
    return any(value(key) == "error" for key in content.keys)
