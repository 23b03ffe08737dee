"""Proving a plan: one round goes through vLLM's reload, and what the plan would have written is compared with that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from weightwire_vllm_engine.plan import Plan, UnplannableError

_AT_ONCE = 64 * 1024 * 1024  # bytes


class Proof:
    """Compares a round with a plan, tensor by tensor and bit by bit, as soon as a tensor's module is loaded.

    vLLM holds what it is given until the module is complete, so that nothing is held here that is not held there.
    """

    def __init__(self, plan: Plan) -> None:
        """Nothing was seen yet."""
        self.plan = plan
        self.failure = ""
        self._seen: set[int] = set()
        self._pending: list[tuple[int, torch.Tensor]] = []

    def see(self, first: int, tensors: Sequence[torch.Tensor]) -> None:
        """Take note of what was loaded: tensors *first* and following of the manifest. They must stay as they are."""
        if self.failure:
            return
        self._pending += [(first + number, tensor) for number, tensor in enumerate(tensors)]
        self._compare(all_of_them=False)

    def end(self) -> bool:
        """Say that the reload is over.

        Returns:
            Whether the plan is proven: no round is, that did not bring everything, and it is no word against the plan.

        Raises:
            UnplannableError: the plan is wrong.
        """
        self._compare(all_of_them=True)
        if self.failure:
            raise UnplannableError(self.failure)
        return len(self._seen) == len(self.plan.pieces)

    def _compare(self, *, all_of_them: bool) -> None:
        waiting = []
        for index, tensor in self._pending:
            if not all_of_them and not all(home.settled for home in self.plan.homes[index]):
                waiting.append((index, tensor))
            elif not self.failure:
                self._try_one(index, tensor)
        self._pending = [] if self.failure else waiting

    def _try_one(self, index: int, tensor: torch.Tensor) -> None:
        try:
            self._compare_one(index, tensor)
        except Exception as error:  # noqa: BLE001 - such as no memory for it: the round itself is well, and goes on
            self.failure = f"it could not be compared with a round: {type(error).__name__}: {error}"

    def _compare_one(self, index: int, tensor: torch.Tensor) -> None:
        self._seen.add(index)
        for piece, home in zip(self.plan.pieces[index], self.plan.homes[index], strict=True):
            if not same_bits(piece.target, piece.of(tensor)):
                self.failure = f"{home.name} is not what a copy would make it, once vLLM has loaded it"


def same_bits(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy of *source* would leave *target* as it is, to the last bit, also where that is no number."""
    copied = source.to(dtype=target.dtype, device=target.device).contiguous()
    return all(map(torch.equal, _bytes(target), _bytes(copied)))


def _bytes(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """In parts: a comparison takes as much memory as what is compared."""
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    return (flat[start : start + _AT_ONCE] for start in range(0, flat.numel(), _AT_ONCE))
