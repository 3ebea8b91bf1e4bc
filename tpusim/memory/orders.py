"""Which way round tensors lie in HBM, by the names that machines give them: CHW, HWC, HWCN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.scalars import show, unknown_key

AXES = "CHWN"
"""The axes of a feature map, as its shape has them: channel, row (height), column (width), image."""

HWCN = "HWCN"
"""Words as the array streams them: the images of a channel side by side (paper section IV)."""

FILTER = "filter"
AS_READ = "as_read"
"""Of the filter: pass after pass, as the weights are fetched, so that a fill is one run."""

TRANSFORMED = "transformed"
"""A filter made ready before the layer: it lies as it is read, however filters do."""

FILTERS: Mapping[str, tuple[int, ...] | None] = {AS_READ: None, "OHWI": (0, 1), "HWIO": (1, 0)}
"""The ways of the filter [out_channel, k], k being tap by tap with channels inside: its axes, the outermost first."""

TENSORS = "ifmap", "ofmap", "lowered", FILTER
"""Those that may have a way of their own."""

_EXAMPLES = "such as CHW, HWC or HWCN (C channels, H rows, W columns, N images, which are outermost where left out)"


@dataclass(frozen=True, slots=True)
class Layouts:
    """The way of `every` feature map, and those of the tensors that are `named`: pairs of tensor and way."""

    every: str = HWCN
    named: tuple[tuple[str, str], ...] = ()

    def of(self, tensor: str) -> str:
        """The way of a tensor."""
        return dict(self.named).get(tensor, AS_READ if tensor in (FILTER, TRANSFORMED) else self.every)

    @property
    def written(self) -> str | dict[str, str]:
        """As files write it."""
        return dict(self.named) if self.named else self.every


def axes_of(order: str) -> tuple[int, ...]:
    """The axes of a feature map, the outermost first: (3, 0, 1, 2) of CHW, with images outside."""
    return tuple(map(AXES.index, order if "N" in order else f"N{order}"))


def read_layouts(value: object) -> Layouts:
    """What a file says: one way for all feature maps, or a mapping by tensor.

    Raises:
        InputError: with every problem; `where` is the tensor.
    """
    if isinstance(value, Layouts):
        return value
    if not isinstance(value, Mapping):
        return Layouts(_order(value))
    named, problems = [], []
    for tensor, order in value.items():
        try:
            named.append((str(tensor), _order_of(tensor, order)))
        except InputError as error:
            problems.append(Problem(str(error), str(tensor)))
    if problems:
        raise InputError(problems)
    return Layouts(named=tuple(sorted(each for each in named if each[1] != Layouts().of(each[0]))))


def _order_of(tensor: object, order: object) -> str:
    if tensor not in TENSORS:
        raise InputError(unknown_key(str(tensor), TENSORS, did_you_mean(str(tensor), TENSORS), " in layout"))
    if tensor != FILTER:
        return _order(order)
    if order not in FILTERS:
        hint = did_you_mean(str(order), FILTERS) or ";"
        raise InputError(f"{show(order)} is not a layout of the filter{hint} write {' or '.join(FILTERS)}")
    return str(order)


def _order(value: object) -> str:
    """The name of a way for feature maps."""
    letters = sorted(value) if isinstance(value, str) else []
    if letters in (sorted(AXES), sorted(AXES.replace("N", ""))):
        return str(value)
    upper = str(value).upper()
    hint = f"; did you mean {upper}?" if upper != value and sorted(upper) in (sorted(AXES), sorted("CHW")) else ";"
    raise InputError(f"{show(value)} is not a layout of feature maps{hint} write the order of their axes, {_EXAMPLES}")
