"""An axis over which a kernel moves, and the padding at its ends as files write it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import PlainValidator, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.form import names_of, size
from tpusim.input.scalars import integer, show, worked_out

Ends: TypeAlias = tuple[int, int]
"""What is added before the first element of an axis, and after the last."""
Same: TypeAlias = Literal["same", "same_lower"]
"""As much as gives an output for each step of the stride that the map has; an odd one comes last, or first."""

_SAME = "same", "same_lower"
_ELSEWHERE = {"valid": "0", "same_upper": "same"}
"""What other tools call paddings."""


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """One axis of a map of `size` elements, over which so many taps move, `dilation` apart, by `stride`."""

    name: str
    size: int
    kernel: int
    stride: int
    dilation: int
    padding: Ends | Same

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def ends(self) -> Ends:
        """The padding, in elements; `same` as ONNX and TensorFlow define it."""
        if isinstance(self.padding, tuple):
            return self.padding
        steps = -(-self.size // self.stride)
        added = max(0, (steps - 1) * self.stride + self.reach - self.size)
        less, more = added // 2, -(-added // 2)
        return (less, more) if self.padding == "same" else (more, less)

    @property
    def padded(self) -> int:
        """Elements, padding included."""
        return self.size + sum(self.ends)

    @property
    def outputs(self) -> int:
        """Positions of the kernel."""
        return (self.padded - self.reach) // self.stride + 1

    def problems(self) -> Iterator[Problem]:
        """That the kernel has no position."""
        if self.reach > self.padded:
            only = f"but the padded input only {self.padded}"
            sizes = f"the kernel spans {self.reach} in {self.name} with its dilation, {only}"
            yield Problem(f"{sizes}; use a smaller kernel or dilation, or more padding", "kernel")


def padding(most: int, counts: tuple[int, ...], forms: str) -> PlainValidator:
    """`same`, `same_lower`, or whole numbers up to `most`: as many as one of `counts`, or one for the first of them.

    Four numbers that are alike at opposite sides become two. `forms` is what a message says of how to write them.
    """

    def read(value: object, info: ValidationInfo) -> tuple[int, ...] | str:
        if isinstance(value, str) and value in _SAME:
            return value
        names = names_of(info)
        given = worked_out(value, names) if names else value
        if isinstance(given, bool) or integer(given) is not None:
            given = (given,) * counts[0]
        if not isinstance(given, list | tuple) or len(given) not in counts:
            raise InputError(f"{show(value)} is not a padding{_hint(value)} write {forms}, {' or '.join(_SAME)}")
        sides = tuple(size(part, 0, most, names) for part in given)
        return sides[:2] if sides[:2] == sides[2:] else sides

    return PlainValidator(read)


def _hint(value: object) -> str:
    if not isinstance(value, str):
        return ";"
    known = _ELSEWHERE.get(value.casefold())
    return f"; did you mean {known}?" if known else did_you_mean(value, _SAME) or ";"
