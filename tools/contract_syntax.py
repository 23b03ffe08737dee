"""Reading facts off a syntax tree: routes, signatures, dataclass fields, literals."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function below *tree*, methods included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def find_class(modules: Iterable[ast.Module], name: str) -> ast.ClassDef | None:
    """The first class of that name."""
    nodes = (node for module in modules for node in ast.walk(module))
    return next((node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name), None)


def find_function(tree: ast.AST | None, name: str) -> Function | None:
    """The first function of that name below *tree*."""
    return None if tree is None else next((node for node in functions(tree) if node.name == name), None)


def value(node: ast.expr | None, constants: dict[str, Json] | None = None) -> Json:
    """A literal as itself, a known name or product as its value, anything else as source text."""
    if node is None:
        return None
    try:
        literal: Json = ast.literal_eval(node)
    except ValueError:
        pass
    else:
        return list(literal) if isinstance(literal, tuple) else literal
    if isinstance(node, ast.Name) and constants and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = value(node.left, constants), value(node.right, constants)
        if isinstance(left, int) and isinstance(right, int):
            return left * right
    return ast.unparse(node)


def constants(modules: Iterable[ast.Module], prefix: str) -> dict[str, Json]:
    """Module-level assignments to names that begin with *prefix*."""
    found: dict[str, Json] = {}
    for node in (node for module in modules for node in module.body):
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])).startswith(prefix):
            found[name] = value(node.value)
    return found


def parameters(function: Function | None) -> list[str]:
    """The names of a function's parameters, without ``self``."""
    if function is None:
        return []
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in given if argument.arg != "self"]


def defaults(function: Function) -> dict[str, ast.expr]:
    """Defaults by parameter name."""
    given = [*function.args.posonlyargs, *function.args.args]
    last = given[len(given) - len(function.args.defaults) :]
    found = {argument.arg: default for argument, default in zip(last, function.args.defaults, strict=True)}
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found | {argument.arg: default for argument, default in pairs if default is not None}


def annotated(function: Function) -> dict[str, str]:
    """Annotations by parameter name, as source text."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {argument.arg: ast.unparse(argument.annotation) for argument in given if argument.annotation}


def fields(node: ast.ClassDef, modules: list[ast.Module], *, known: dict[str, Json]) -> dict[str, Json]:
    """A dataclass's fields, its bases' first: type, whether required, default."""
    found: dict[str, Json] = {}
    for base in node.bases:
        if (inherited := find_class(modules, ast.unparse(base))) is not None:
            found |= fields(inherited, modules, known=known)
    for statement in node.body:
        if _is_field(statement):
            described: dict[str, Json] = {
                "type": ast.unparse(statement.annotation),
                "required": statement.value is None,
            }
            if statement.value is not None:
                described["default"] = _field_default(statement.value, known)
            found[ast.unparse(statement.target)] = described
    return found


def _is_field(statement: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation) != "KW_ONLY"


def _field_default(node: ast.expr, known: dict[str, Json]) -> Json:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default_factory" in given:
            return f"{ast.unparse(given['default_factory'])}()"
        return value(given.get("default"), known)
    return value(node, known)


def decorators(node: ast.ClassDef | Function) -> list[str]:
    """Its decorators, as source text."""
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def raised(function: Function | None, error: str) -> list[Json]:
    """The messages with which *function* raises *error*; in an f-string the parts that vary read ``{…}``."""
    calls = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise)] if function else []
    return [
        message(call.args[0])
        for call in calls
        if isinstance(call, ast.Call) and ast.unparse(call.func) == error and call.args
    ]


def message(node: ast.expr) -> str:
    """A string or an f-string as text."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    return str(value(node))


def assigns(tree: ast.AST, attribute: str, *, wanted: object) -> bool:
    """Whether ``self.attribute = wanted`` occurs below *tree*."""
    return any(
        ast.unparse(target) == f"self.{attribute}"
        and isinstance(node.value, ast.Constant)
        and node.value.value is wanted
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
    )
