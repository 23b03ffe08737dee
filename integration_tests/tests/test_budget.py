"""The size budget notices what it is there to notice, and nothing else."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import check_budget
import pytest

TESTED = "def test_nothing() -> None: ...\n" * 400


@pytest.fixture(autouse=True)
def no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository's own exceptions would be stale in the small trees made here."""
    monkeypatch.setattr(check_budget, "EXCEPTIONS", {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with one member that is well within the budget."""
    write(tmp_path, "packages/a/pyproject.toml", "")
    write(tmp_path, "packages/a/src/a/__init__.py", '"""A."""\n')
    write(tmp_path, "packages/a/tests/test_a.py", TESTED)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text), encoding="utf-8")


def rules(root: Path) -> list[tuple[str, str]]:
    return [(breach.what, breach.rule) for breach in check_budget.breaches(check_budget.find_members(root))]


def module(root: Path, text: str) -> list[tuple[str, str]]:
    """What is found in a module with this text."""
    write(root, "packages/a/src/a/m.py", '"""M."""\n' + dedent(text))
    return rules(root)


def test_a_small_member_passes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_budget.main([str(root)]) == 0
    assert capsys.readouterr().out.endswith("within the budget\n")


def test_a_breach_is_printed_like_a_compilers_message_and_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "packages/a/src/a/m.py", '"""M."""\n\ndef f(): pass\n')

    assert check_budget.main([str(root)]) == 1
    assert "m.py:3: a.m:f: no return annotation [returns]" in capsys.readouterr().out


def test_a_module_over_the_cap_is_found(root: Path) -> None:
    assert ("a.m", "module") in module(root, "x = 1\n" * 400)


def test_a_long_function_is_found_also_inside_another(root: Path) -> None:
    body = "def f() -> None:\n    '''F.'''\n    def g() -> None:\n" + "        pass\n" * 60
    assert module(root, body) == [("a.m:f", "function"), ("a.m:f.g", "function")]


def test_six_parameters_are_too_many_and_four_by_position(root: Path) -> None:
    assert module(root, "def f(a, b, *, c, d, e, g) -> None:\n    '''F.'''\n") == [("a.m:f", "parameters")]
    assert module(root, "def f(a, b, c, d) -> None:\n    '''F.'''\n") == [("a.m:f", "positional")]


def test_self_a_deadline_and_the_options_do_not_count(root: Path) -> None:
    text = """
    class C:
        '''C.'''

        def __init__(self, a, b) -> None:
            '''Keep.'''

        @classmethod
        def make(cls, a, b, options, deadline) -> None:
            '''Make.'''

        @staticmethod
        def four(a, b, c, d) -> None:
            '''Four.'''
    """
    assert module(root, text) == [("a.m:C.four", "positional")]


def test_what_is_private_may_take_its_arguments_by_position(root: Path) -> None:
    assert module(root, "def _f(a, b, c, d) -> None: pass\n") == []
    assert module(root, "class _C:\n    def __init__(self, a, b, c, d) -> None: pass\n") == []


def test_a_public_constructor_may_not(root: Path) -> None:
    text = "class C:\n    '''C.'''\n\n    def __init__(self, a, b, c, d) -> None: pass\n"
    assert module(root, text) == [("a.m:C.__init__", "positional"), ("a.m:C.__init__", "docstring")]


def test_a_hook_implementation_takes_what_the_hook_gives(root: Path) -> None:
    text = "@hookimpl(wrapper=True)\ndef f(a, b, c, d, e, g) -> None:\n    '''F.'''\n"
    assert module(root, text) == []


def test_a_protocol_decides_for_its_implementations_but_not_for_a_name_alone(root: Path) -> None:
    text = """
    class P(Protocol):
        '''P.'''

        def send(self, a, b, c, d) -> None:
            '''Send.'''

    class Same:
        '''Same.'''

        def send(self, a, b, c, d) -> None:
            '''Send.'''

    class Other:
        '''Other.'''

        def send(self, a, b, x, d) -> None:
            '''Send.'''
    """
    assert module(root, text) == [("a.m:Other.send", "positional")]


def test_public_names_need_docstrings_and_private_ones_do_not(root: Path) -> None:
    text = """
    class C:
        def f(self) -> None:
            def inner() -> None: pass

        def _g(self) -> None: pass

    class _D:
        def f(self) -> None: pass

    def f() -> None: pass
    """
    assert module(root, text) == [("a.m:C", "docstring"), ("a.m:C.f", "docstring"), ("a.m:f", "docstring")]


def test_a_private_module_needs_no_docstrings(root: Path) -> None:
    write(root, "packages/a/src/a/_m.py", "def f() -> None: pass\n")
    assert rules(root) == []


def test_many_long_functions_breach_the_median(root: Path) -> None:
    function = "def _f() -> None:\n" + "    pass\n" * 40
    assert module(root, function * 3) == [("a", "function median"), ("a", "function p90")]


def test_long_modules_breach_the_median(root: Path) -> None:
    write(root, "packages/a/src/a/__init__.py", '"""A."""\n' + "x = 1\n" * 150)
    assert module(root, "x = 1\n" * 150) == [("a", "module median")]


def test_too_few_tests_fail_and_a_beginning_is_spared(root: Path) -> None:
    write(root, "packages/a/tests/test_a.py", "")
    assert module(root, "x = 1\n" * 110) == [("a", "tests")]
    assert module(root, "x = 1\n" * 50) == []


def test_tools_have_caps_but_no_medians(root: Path) -> None:
    write(root, "tools/t.py", '"""T."""\n' + "x = 1\n" * 300)
    assert rules(root) == []
    write(root, "tools/t.py", '"""T."""\n' + "x = 1\n" * 400)
    assert rules(root) == [("t", "module")]


def test_an_exception_covers_one_rule_of_one_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_budget, "EXCEPTIONS", {("a.m:f", "positional"): "the engine calls it so"})
    assert module(root, "def f(a, b, c, d):\n    '''F.'''\n") == [("a.m:f", "returns")]


def test_an_exception_that_nothing_needs_is_a_breach(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_budget, "EXCEPTIONS", {("a.gone", "module"): "it was long once"})
    assert rules(root) == [("a.gone", "module")]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.9, 9), (1.0, 10)])
def test_percentiles_are_nearest_rank(share: float, expected: int) -> None:
    assert check_budget.percentile(range(1, 11), share) == expected
    assert check_budget.percentile([], share) == 0
