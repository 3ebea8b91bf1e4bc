"""Values of one chip while JAX traces its share: how they are placed, and how chips place them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, NoReturn

from jax import lax

from tpusim.base.errors import InputError, Problem
from tpusim.network.formats.jax_function.placements import common, next_exchange, shown
from tpusim.network.graph import Placement


class LocalValue(NamedTuple):
    """A chip's part of a value.

    Attributes:
        value: what is traced.
        place: how the whole is parted.
        origin: the input that it is, of which nothing has told yet how it is placed.
        again: what makes it placed otherwise at less cost: the same number in fewer places, or a sum that is
            scattered; None where it cannot.
        zero: whether it is zero everywhere.
        sum: whether it is a sum over chips, which `again` scatters, so that it should be read once.
    """

    value: Any
    place: Placement
    origin: int | None = None
    again: Callable[[Placement], Any] | None = None
    zero: bool = False
    sum: bool = False

    @property
    def parted(self) -> bool:
        """Whether chips have parts of it."""
        return any(self.place)


class LocalValues:
    """The chips of a mesh, and what they do with parts of values."""

    def __init__(self, mesh: Mapping[str, int], label: str, learned: dict[int, Placement]) -> None:
        self.mesh, self._label, self.learned = mesh, label, learned
        self.line = ""

    def along(self, axes: Sequence[str]) -> int:
        return prod(self.mesh[name] for name in axes)

    def local(self, shape: Sequence[int], place: Placement) -> tuple[int, ...]:
        """Return the shape of a chip's part. Raises InputError where it cannot be parted evenly."""
        for size, axes in zip(shape, place, strict=True):
            if size % self.along(axes):
                where = f" at {self.line}" if self.line else ""
                says = f"an axis of {size:,} elements{where} cannot be parted evenly along {', '.join(axes)}"
                raise InputError(Problem(says, self._label))
        return tuple(size // self.along(axes) for size, axes in zip(shape, place, strict=True))

    def refuse(self, eqn: Any, given: Sequence[LocalValue], why: str) -> NoReturn:
        told = ", ".join(f"{var.aval.dtype}[{shown(var.aval.shape, part.place)}]"
                         for var, part in zip(eqn.invars, given, strict=True))  # fmt: skip
        where = f" at {self.line}" if self.line else ""
        raise InputError(Problem(f"lax.{eqn.primitive.name} of {told}{where}: {why}", self._label))

    def bound(self, eqn: Any, given: Sequence[LocalValue], **other: Any) -> list[Any]:
        """Apply a primitive to chips' parts, with other parameters."""
        said = {**eqn.params, **other}
        # A local value has no sharding.
        said |= {name: None for name in ("sharding", "out_sharding") if name in said}
        found = eqn.primitive.bind(*(part.value for part in given), **said)
        return [*found] if eqn.primitive.multiple_results else [found]

    # ---- placed otherwise

    def placed(self, part: LocalValue, wanted: Placement) -> LocalValue:
        """Return a part that is placed as is wanted: chips gather, or exchange, or cut, which is free."""
        if part.origin is not None and part.origin not in self.learned and any(wanted):
            self.learned[part.origin] = wanted
        if part.place == wanted:
            return part
        if part.again is not None and (made := part.again(wanted)) is not None:
            return LocalValue(made, wanted)
        value, place = part.value, [*part.place]
        # What cannot be parted is told in words, before JAX tells of it in its own.
        whole = [size * self.along(axes) for size, axes in zip(value.shape, place, strict=True)]
        self.local(whole, wanted)
        while tuple(place) != wanted:
            if (move := next_exchange(place, wanted)) is not None:
                axis, to, axes = move
                value = lax.all_to_all(value, axes if len(axes) > 1 else axes[0], to, axis, tiled=True)
                place[axis], place[to] = place[axis][: -len(axes)], (*place[to], *axes)
                continue
            value = self._cut_or_gathered(value, place, wanted)
        return LocalValue(value, wanted)

    def _cut_or_gathered(self, value: Any, place: list[tuple[str, ...]], wanted: Placement) -> Any:
        # Axes are free for others once they are gathered, so gathers go before cuts.
        for axis, (own, other) in enumerate(zip(place, wanted, strict=True)):
            kept = common(own, other)
            if len(kept) < len(own):
                place[axis] = kept
                return lax.all_gather(value, own[len(kept) :], axis=axis, tiled=True)
        used = {name for axes in place for name in axes}
        for axis, (own, other) in enumerate(zip(place, wanted, strict=True)):
            if len(own) < len(other) and other[len(own)] not in used:
                name = other[len(own)]
                place[axis] = (*own, name)
                return self._own_part(value, axis, name)
        raise AssertionError("no way from one placement to the other")

    def _own_part(self, value: Any, axis: int, name: str) -> Any:
        size = value.shape[axis] // self.mesh[name]
        return lax.dynamic_slice_in_dim(value, lax.axis_index(name) * size, size, axis)

    def joined(self, value: Any, place: Placement, partial: Sequence[str], target: Placement | None) -> LocalValue:
        """Return the sum of what chips have along the axes `partial`, scattered where it is wanted in parts."""
        left, made, parts = [*partial], [*place], value
        for axis, wanted in enumerate(target or ()):
            own = made[axis]
            names = tuple(name for name in wanted[len(own) :] if name in left) if wanted[: len(own)] == own else ()
            # A scatter costs half of a sum that all have whole.
            if names and wanted[len(own) : len(own) + len(names)] == names:
                parts = lax.psum_scatter(parts, names, scatter_dimension=axis, tiled=True)
                made[axis] = (*own, *names)
                left = [name for name in left if name not in names]
        if not left:
            return LocalValue(parts, tuple(made))

        def scattered(wanted: Placement) -> Any:
            again = self.joined(value, place, partial, wanted)
            return again.value if again.place == wanted and again.place != place else None

        return LocalValue(lax.psum(parts, tuple(left)), tuple(made), None, scattered, sum=True)
