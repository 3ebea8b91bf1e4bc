"""Memory needs of a run, estimated before it begins: a run that this computer has no room for is refused at once."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.flow.lowerings import asked_of, at_its_place, fitting, tried
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.family import Checking, Machine, Need, family_of
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

PROCESS_BYTES = 60_000_000
"""Bytes left to Python and NumPy, which a run must not use up."""


class AskedLayer(NamedTuple):
    """A layer with all that is asked of it; `bounded` is as in `tried`."""

    layer: Op
    batch: int
    machine: Machine
    lowering: str
    how: Checking
    bounded: bool = False

    @property
    def kind(self) -> Hashable:
        """Equal for layers that share a Program."""
        return self.layer.shape_key, self.lowering


@dataclass(frozen=True)
class Room:
    """Memory needs of each shape of a workload, by `AskedLayer.kind`, and the bytes that are free beside the largest
    need.
    """

    needs: Mapping[Hashable, Need]
    spare: int

    @property
    def kept(self) -> int:
        """Bytes for Programs that wait for the next layer of their shape."""
        return self.spare // 2

    @property
    def ahead(self) -> int:
        """Bytes for layers that are checked while the next is lowered; 0 if there is no room to lower it."""
        left = self.spare // 2 - max(need.program for need in self.needs.values())
        return max(need.total for need in self.needs.values()) + left if left >= 0 else 0


def need_of(asked: AskedLayer, free: int = sys.maxsize) -> Need:
    """Memory needs of simulating a layer, by any lowering that may be chosen for it.

    Needs that surely exceed `free` are not worked out in full. If several lowerings are tried, a Program is held beside
    the fastest so far; the log of the event engine, about as large again, is gone by then.

    Raises:
        CapacityError: when the layer does not fit the machine.
    """
    layer, batch, machine, family = asked.layer, asked.batch, asked.machine, family_of(asked.machine)
    names = tried(asked.lowering, layer, batch, family, asked.bounded)
    plans = [*fitting(names, lambda name: family.planned(layer, batch, machine, name, asked.how, free))]
    # Only the fastest so far is kept beside the one that is tried, without its log, which is about half of its need.
    neediest, *others = sorted((plan.program for plan in plans for _ in range(plan.at_once)), reverse=True)
    return Need(
        neediest + sum(others[:1]) // 2,
        max(plan.values for plan in plans),
        max((plan.passes for plan in plans if plan.passes is not None), default=None),
    )


def room_for(
    workload: Workload, machine: Machine, lowering: str, engine: str, check: bool, numbers: Numbers = SMALL
) -> Room:
    """Look at every layer before the first is simulated.

    Raises:
        InputError: when one needs more memory than there is, names the neediest and says what would fit all layers;
            when a lowering is unknown, says where; or when a layer cannot fit the machine (CapacityError).
    """
    free = free_bytes() - PROCESS_BYTES
    shapes: dict[Hashable, AskedLayer] = {}
    for layer, name in asked_of(workload, lowering, family_of(machine)):
        how = Checking(engine, check, numbers.of(layer).operand_bytes)
        asked = AskedLayer(layer, workload.batch, machine, name, how, check and numbers.bounded)
        shapes.setdefault(asked.kind, asked)
    needs = {}
    for shape, asked in shapes.items():
        with at_its_place(workload, asked.layer):
            needs[shape] = need_of(asked, free)
    # The neediest come first: advice mostly fails because of them.
    neediest = sorted(shapes, key=lambda shape: -needs[shape].total)
    most = needs[neediest[0]]
    if most.total > free:
        raise _refusal([shapes[shape] for shape in neediest], most, free)
    return Room(needs, free - most.total)


def _refusal(layers: Sequence[AskedLayer], need: Need, free: int) -> InputError:
    """The error about the first of `layers`, the neediest."""
    check, where = layers[0].how.check, f"layer {layers[0].layer.name}"
    if need.passes is None:
        says = f"needs about {_giga(need.total)} GB of memory, and {_giga(max(0, free))} GB are free"
        return InputError(Problem(f"{says}; take a smaller batch{', or check nothing' if check else ''}", where))
    problem = f"{need.passes:,} passes{' and the values to check' if check else ''}"
    problem += f" need about {_giga(need.total + PROCESS_BYTES)} GB of memory"
    problem += f", and {_giga(free + PROCESS_BYTES)} GB are free"
    return InputError(Problem(f"{problem}; {_advice(layers, free)}", where))


def _advice(layers: Sequence[AskedLayer], free: int) -> str:
    """Options with which all layers would fit, as users write them."""
    first = layers[0]
    fits = [text for text, others in _smaller(layers) if _fit(others, free)][:1]
    if first.how.check and _fit([each._replace(how=each.how._replace(check=False)) for each in layers], free):
        fits.append("no check")
    if not fits:
        larger = family_of(first.machine).larger(first.machine)
        fits = [text for text, one in larger if _fit([each._replace(machine=one) for each in layers], free)][:1]
    return f"{' or '.join(fits)} would fit" if fits else "nothing like it would fit"


def _fit(layers: Sequence[AskedLayer], free: int) -> bool:
    try:
        return all(need_of(asked, free).total <= free for asked in layers)
    except CapacityError:
        return False


def _smaller(layers: Sequence[AskedLayer]) -> Iterator[tuple[str, Sequence[AskedLayer]]]:
    """The first layer with ever less input, and the others with the batch that goes with it."""
    first, *others = layers
    layer, batch = first.layer, first.batch
    while (less := layer.with_less_input(batch)) is not None:
        layer, batch, text = less
        yield text, [first._replace(layer=layer, batch=batch), *(each._replace(batch=batch) for each in others)]


def _giga(size: int) -> str:
    return f"{size / 1e9:,.1f}"
