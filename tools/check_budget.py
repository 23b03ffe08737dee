"""Check that the sources stay small: one row a member, then what breaches the budget.

Usage: ``python tools/check_budget.py [ROOT]``; exit code 1 on a breach.

The figures were measured on codebases that are good to read (pluggy, tox, import-linter, stamina): they differ in the
size of their modules and agree on the size of their functions. A function is counted whole, from ``def`` to its last
line, with its docstring.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

MODULE_CAP, MODULE_MEDIAN = 400, 120
FUNCTION_CAP, FUNCTION_P90, FUNCTION_MEDIAN = 60, 35, 10
PARAMETERS, POSITIONAL = 5, 3
TESTS_LEAST, TESTS_LOW, TESTS_HIGH = 0.6, 1.0, 2.0
PASSED_ALONG = frozenset({"deadline", "options"})
ENOUGH_LINES = 100
"""A member below this many lines is a beginning: its medians and its share of tests say nothing yet."""

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""What may breach which rule, and why: ``("weightwire_x.module:Class.method", "parameters"): "reason"``."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Breach:
    """Something over the budget: a *rule* broken by *what*, and the figures in *text*."""

    where: str
    what: str
    rule: str
    text: str

    def __str__(self) -> str:
        """Read as a compiler's message, so that an editor can jump there."""
        return f"{self.where}: {self.what}: {self.text} [{self.rule}]"


@dataclass(frozen=True)
class Function:
    """One function or method, as measured; *public* if its callers are out of sight and written by people."""

    name: str
    node: FunctionNode
    method: bool
    public: bool

    @property
    def lines(self) -> int:
        """Lines from ``def`` to the last one."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def decorators(self) -> frozenset[str]:
        """Last words of its decorators: ``hookimpl``, ``setter``, ``staticmethod``."""
        calls = (node.func if isinstance(node, ast.Call) else node for node in self.node.decorator_list)
        return frozenset(ast.unparse(node).rpartition(".")[2] for node in calls)

    @property
    def positional(self) -> tuple[str, ...]:
        """Names of the parameters that can be given by position, without ``self`` and ``cls``.

        A deadline and the options do not count either: each has one name and its own type wherever it is passed.
        """
        names = [arg.arg for arg in (*self.node.args.posonlyargs, *self.node.args.args)]
        mine = names[1:] if self.method and "staticmethod" not in self.decorators else names
        return tuple(name for name in mine if name not in PASSED_ALONG)

    @property
    def signature(self) -> tuple[str, tuple[str, ...]]:
        """Its own name and its positional parameters: what an implementation of a Protocol repeats."""
        return self.node.name, self.positional

    @property
    def parameters(self) -> int:
        """How many parameters there are in all."""
        return len(self.positional) + len(self.node.args.kwonlyargs)


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    name: str
    lines: int
    code: int
    tree: ast.Module
    functions: tuple[Function, ...]

    @classmethod
    def read(cls, path: Path, top: Path) -> Module:
        """Parse *path*; its dotted name counts from *top*."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        parts = path.relative_to(top).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        public = not any(part.startswith("_") for part in name.split("."))
        functions = tuple(_functions(tree, f"{name}:", public=public))
        return cls(path, name, len(text.splitlines()), code_lines(text), tree, functions)


@dataclass(frozen=True)
class Member:
    """One distribution, or the tools."""

    name: str
    modules: tuple[Module, ...]
    test_lines: int | None

    @property
    def functions(self) -> list[Function]:
        """All its functions."""
        return [function for module in self.modules for function in module.functions]

    @property
    def lines(self) -> int:
        """Lines of source."""
        return sum(module.lines for module in self.modules)

    @property
    def code(self) -> int:
        """Lines of source that do something: without docstrings, comments and blank lines."""
        return sum(module.code for module in self.modules)

    @property
    def tests_ratio(self) -> float | None:
        """Lines of tests per line of source, both without docstrings and comments; None where it says nothing."""
        return self.test_lines / self.code if self.test_lines is not None and self.code >= ENOUGH_LINES else None


def code_lines(text: str) -> int:
    """How many lines of a module do something: docstrings, comments and blank lines do not count."""
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for n, line in lines if n not in documented and line.strip() and not line.strip().startswith("#"))


def _functions(scope: ast.AST, prefix: str, *, public: bool, inside: bool = False) -> Iterator[Function]:
    """Every function below *scope*; *inside* a function nothing is public, *prefix* is the name so far."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            shown = public and not inside and not node.name.startswith("_")
            yield from _functions(node, f"{prefix}{node.name}.", public=shown, inside=inside)
        elif isinstance(node, FunctionNode):
            shown = public and not inside and (not node.name.startswith("_") or node.name == "__init__")
            yield Function(f"{prefix}{node.name}", node, isinstance(scope, ast.ClassDef), shown)
            yield from _functions(node, f"{prefix}{node.name}.", public=False, inside=True)
        else:
            yield from _functions(node, prefix, public=public, inside=inside)


def percentile(values: Sequence[int], share: float) -> int:
    """The nearest-rank percentile; 0 of nothing."""
    return sorted(values)[ceil(share * len(values)) - 1] if values else 0


def contracts(modules: Iterable[Module]) -> frozenset[tuple[str, tuple[str, ...]]]:
    """Signatures that a Protocol sets: the Protocol is where they are decided, not each implementation."""
    protocols = (
        (module, node.name)
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    )
    return frozenset(
        function.signature
        for module, name in protocols
        for function in module.functions
        if function.name.startswith(f"{module.name}:{name}.")
    )


def module_breaches(module: Module, known: frozenset[tuple[str, tuple[str, ...]]]) -> Iterator[Breach]:
    """What one file breaches."""
    if module.lines > MODULE_CAP:
        yield Breach(f"{module.path}:1", module.name, "module", f"{module.lines} lines, the cap is {MODULE_CAP}")
    for function in module.functions:
        where = f"{module.path}:{function.node.lineno}"
        for rule, text in _function_faults(function, known):
            yield Breach(where, function.name, rule, text)
    for node, name in _undocumented(module):
        yield Breach(f"{module.path}:{node}", name, "docstring", "public, and has no docstring")


def _function_faults(function: Function, known: frozenset[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, str]]:
    if function.lines > FUNCTION_CAP:
        yield "function", f"{function.lines} lines, the cap is {FUNCTION_CAP}"
    if function.node.returns is None:
        yield "returns", "no return annotation"
    if "hookimpl" in function.decorators or "hookspec" in function.decorators:
        return  # pluggy passes arguments by name
    if function.parameters > PARAMETERS:
        yield "parameters", f"{function.parameters} parameters, the cap is {PARAMETERS}"
    if function.public and len(function.positional) > POSITIONAL and function.signature not in known:
        yield "positional", f"{len(function.positional)} positional parameters; keyword-only after {POSITIONAL}"


def _undocumented(module: Module) -> Iterator[tuple[int, str]]:
    if any(part.startswith("_") for part in module.name.split(".")):
        return
    if ast.get_docstring(module.tree) is None and module.tree.body:
        yield 1, module.name
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield node.lineno, f"{module.name}:{node.name}"
    for function in module.functions:
        derived = function.decorators & {"overload", "setter", "deleter", "override"}
        if function.public and not derived and ast.get_docstring(function.node) is None:
            yield function.node.lineno, function.name


def member_breaches(member: Member) -> Iterator[Breach]:
    """What a distribution breaches as a whole; tools are not read as one."""
    if member.code < ENOUGH_LINES or member.test_lines is None:
        return
    lengths = [function.lines for function in member.functions]
    figures = (
        ("module median", median(module.lines for module in member.modules), MODULE_MEDIAN),
        ("function median", median(lengths or [0]), FUNCTION_MEDIAN),
        ("function p90", percentile(lengths, 0.9), FUNCTION_P90),
    )
    for rule, found, most in figures:
        if found > most:
            yield Breach(member.name, member.name, rule, f"{found:g} lines, at most {most}")
    if member.tests_ratio is not None and member.tests_ratio < TESTS_LEAST:
        text = f"{member.tests_ratio:.2f} lines of tests per line of source, at least {TESTS_LEAST}"
        yield Breach(member.name, member.name, "tests", text)


def find_members(root: Path) -> list[Member]:
    """Every distribution below packages/ and plugins/, and the tools."""
    folders = sorted(path.parent for path in root.glob("p*/*/pyproject.toml"))
    members = [_member(folder / "src", folder / "tests") for folder in folders]
    return [*members, _member(root / "tools", None)]


def _member(source: Path, tests: Path | None) -> Member:
    modules = tuple(Module.read(path, source) for path in sorted(source.rglob("*.py")))
    lines = sum(code_lines(path.read_text(encoding="utf-8")) for path in tests.rglob("*.py")) if tests else None
    return Member(tests.parent.name if tests else source.name, modules, lines)


def breaches(members: Sequence[Member]) -> list[Breach]:
    """Everything over the budget that has no exception, and every exception that nothing needs."""
    known = contracts(module for member in members for module in member.modules)
    found = [breach for member in members for breach in member_breaches(member)]
    found += [breach for member in members for module in member.modules for breach in module_breaches(module, known)]
    needed = {(breach.what, breach.rule) for breach in found}
    stale = [
        Breach(__file__, what, rule, "an exception that nothing needs any more")
        for what, rule in EXCEPTIONS
        if (what, rule) not in needed
    ]
    return [breach for breach in found if (breach.what, breach.rule) not in EXCEPTIONS] + stale


def table(members: Sequence[Member]) -> Iterator[str]:
    """One row a member, and one for all."""
    yield f"{'member':<24}{'modules':>8}{'lines':>7}{'median':>8}{'max':>6}{'functions':>11}{'median':>8}{'p90':>5}{'max':>5}{'tests':>8}"  # noqa: E501
    everything = tuple(module for member in members for module in member.modules)
    for member in (*members, Member("all", everything, None)):
        modules = [module.lines for module in member.modules] or [0]
        lengths = [function.lines for function in member.functions] or [0]
        ratio = "" if member.tests_ratio is None else f"{member.tests_ratio:.2f}"
        flag = "" if member.tests_ratio is None or TESTS_LOW <= member.tests_ratio <= TESTS_HIGH else " !"
        yield (
            f"{member.name:<24}{len(member.modules):>8}{member.lines:>7}{median(modules):>8g}{max(modules):>6}"
            f"{len(member.functions):>11}{median(lengths):>8g}{percentile(lengths, 0.9):>5}{max(lengths):>5}"
            f"{ratio:>8}{flag}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the table and the breaches; 1 if there are any."""
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    members = find_members(root)
    print("\n".join(table(members)))
    found = breaches(members)
    print("\n".join(map(str, found)) or "within the budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
