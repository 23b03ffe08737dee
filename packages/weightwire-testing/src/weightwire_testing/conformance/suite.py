"""What every suite of the kit is: a class whose ``test_*`` methods state the contract, and what its user may say.

A user subclasses a suite, overrides its ``make_*`` methods, and says in ``capabilities`` what the thing under test
can do beyond the contract's core. pytest runs the subclass as it runs any class of tests; :func:`run` does without
pytest. A standard test can't be overridden. One that fails for a known reason is named in ``xfails``, with the
reason; it then has to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])

_REQUIRES = "weightwire_requires"


def requires(capability: str) -> Callable[[Test], Test]:
    """Mark a standard test as part of a capability: it runs only where that is claimed."""

    def mark(test: Test) -> Test:
        setattr(test, _REQUIRES, capability)
        return test

    return mark


class Suite:
    """Base of the suites.

    Attributes:
        subject: what is tested, such as ``"data plane"``.
        offers: the capabilities that the suite knows, and what each means.
        capabilities: those that the thing under test has. To be set by the subclass.
        xfails: standard tests that are known to fail, and why. To be set by the subclass.
    """

    subject: ClassVar[str] = ""
    offers: ClassVar[dict[str, str]] = {}
    capabilities: ClassVar[frozenset[str]] = frozenset()
    xfails: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Check what the subclass says.

        Raises:
            TypeError: it overrides a standard test, claims an unknown capability, or expects a failure wrongly.
        """
        super().__init_subclass__()
        for name in vars(cls):
            if name.startswith("test_") and any(hasattr(base, name) for base in cls.__bases__):
                raise TypeError(f"{cls.__name__} overrides the standard test {name}; say why it fails in `xfails`")
        unknown = sorted(cls.capabilities - cls.offers.keys())
        if unknown:
            known = ", ".join(sorted(cls.offers)) or "none"
            raise TypeError(f"{cls.__name__} claims {unknown[0]!r}; known capabilities: {known}")
        for name, reason in cls.xfails.items():
            if name not in cls.contract() or not reason.strip():
                raise TypeError(f"{cls.__name__}.xfails: {name!r} must be a standard test, with a reason")

    @classmethod
    def contract(cls) -> tuple[str, ...]:
        """The names of the tests, standard and the subclass's own, in the order in which they are written."""
        names = [name for base in reversed(cls.__mro__) for name in vars(base) if name.startswith("test_")]
        return tuple(dict.fromkeys(names))

    @classmethod
    def unclaimed(cls, test: str) -> str:
        """The capability that *test* needs and the subclass does not claim; empty if it is to run."""
        needed: str = getattr(getattr(cls, test), _REQUIRES, "")
        return "" if needed in cls.capabilities else needed

    def setup_method(self) -> None:
        """Called before each test."""

    def teardown_method(self) -> None:
        """Called after each test."""
