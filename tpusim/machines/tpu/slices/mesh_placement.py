"""The place of a mesh on a slice: which chips of the torus stand along each of its axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted
from tpusim.machines.exchanged import DCN
from tpusim.machines.tpu.slices.slice import AXES, ChipSlice
from tpusim.machines.tpu.slices.torus import Group, Span, Torus, TorusAxis
from tpusim.network.mesh import on_chips, parse_mesh


def torus_of(place: ChipSlice) -> Torus:
    """The torus of a slice; slices that are joined stand along one axis more."""
    sides = zip(AXES, place.torus, place.wraps, strict=False)
    axes = [TorusAxis(name, side, wraps) for name, side, wraps in sides]
    joined = [TorusAxis(DCN, place.slices, wraps=True, direct=True)] if place.slices > 1 else []
    return Torus((*axes, *joined))


@dataclass(frozen=True)
class MeshPlacement:
    """Axes by their names, each with the spans of the torus that it takes."""

    torus: Torus
    axes: Mapping[str, tuple[Span, ...]]

    def group(self, names: Sequence[str]) -> Group:
        """The group of chips along some axes. Raises InputError for an axis that there is not, or one named twice."""
        for name in names:
            if name not in self.axes:
                guess = did_you_mean(name, self.axes) or ";"
                raise InputError(Problem(f"no axis {name!r}{guess} there is {', '.join(self.axes)}", "--axes"))
        if len({*names}) < len(names):
            raise InputError(Problem("an axis is named twice; name each once", "--axes"))
        return Group(self.torus, _merged(self.torus, [span for name in names for span in self.axes[name]]))

    @property
    def words(self) -> list[str]:
        """A sentence on each axis: which chips it takes."""
        return [f"{name} = {math.prod(s.many for s in spans)}: {_told(self.torus, spans)}"
                for name, spans in self.axes.items()]  # fmt: skip


def _told(torus: Torus, spans: Sequence[Span]) -> str:
    found = []
    for span in spans:
        axis = torus.axes[span.axis]
        which = "neighbours" if span.stride == 1 else f"chips, {span.stride} apart,"
        part = f" ({span.many} {which} of its {axis.length})" if span.many < axis.length else ""
        found.append(f"axis {axis.name}{part}")
    return " and ".join(found) or "a chip alone"


def plain_mesh(place: ChipSlice) -> MeshPlacement:
    """The mesh whose axes are those of the slice."""
    torus = torus_of(place)
    spans = {axis.name: (Span(number, 1, axis.length),) for number, axis in enumerate(torus.axes)}
    return MeshPlacement(torus, spans)


def placed(place: ChipSlice, asked: str | Mapping[str, int]) -> MeshPlacement:
    """The mesh of "data=2,tensor=8", or of sizes by name, on a slice; all of its chips take part in it.

    The last axis of the mesh is placed first, as it speaks most: on whole axes of the slice, the longest that fit and
    wrap first, else on neighbours along a part of one.

    Raises:
        InputError: an axis without a size, or a mesh larger or smaller than the slice.
    """
    sizes = on_chips(parse_mesh(asked), place.name, place.chips) if isinstance(asked, str) else dict(asked)
    torus = torus_of(place)
    wanted, there = math.prod(sizes.values()), place.chips
    if wanted != there:
        says = f"{counted(wanted, 'chip')}, and {place.name} has {there:,}"
        raise InputError(Problem(f"{says}; write sizes whose product is {there:,}, such as data={there}", "--mesh"))
    # Of each axis of the slice the chips that are not taken, and every how many-th they stand.
    left = {number: (1, axis.length) for number, axis in enumerate(torus.axes)}
    found: dict[str, tuple[Span, ...]] = {}
    for name, size in reversed(sizes.items()):
        found[name] = _taken(torus, left, size)
    return MeshPlacement(torus, {name: found[name] for name in sizes})


def _taken(torus: Torus, left: dict[int, tuple[int, int]], size: int) -> tuple[Span, ...]:
    """Take chips for an axis of a mesh out of those that are left."""
    rest, spans = size, []
    order = sorted(left, key=lambda number: (torus.axes[number].direct, -left[number][1], not torus.axes[number].wraps))
    for whole in (True, False):
        for number in order:
            stride, there = left[number]
            part = there if whole and rest % there == 0 else 1 if whole else math.gcd(rest, there)
            if part > 1:
                spans.append(Span(number, stride, part))
                left[number] = (stride * part, there // part)
                rest //= part
    assert rest == 1, "the sizes of a mesh have the product of the sides"
    return tuple(sorted(spans))


def _merged(torus: Torus, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in the order of axes, the parts of an axis that follow one another as one."""
    found: list[Span] = []
    for span in sorted(spans):
        last = found[-1] if found else None
        if last and last.axis == span.axis and last.stride * last.many == span.stride:
            found[-1] = Span(last.axis, last.stride, last.many * span.many)
        elif span.many > 1:
            found.append(span)
    return tuple(found)
