"""How much memory a run needs, estimated before it begins: what this computer does not have is refused at once."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.flow.choice import fitting
from tpusim.flow.lowerings import asked_of, at_its_place, tried
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.family import Checking, Family, Machine, Planned, family_of
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

PROCESS_BYTES = 60_000_000
"""What is left to Python and NumPy themselves, which a run that takes all the rest would lack."""


class Asked(NamedTuple):
    """A layer as it is asked for."""

    layer: Op
    batch: int
    machine: Machine
    lowering: str
    engine: str
    check: bool
    numbers: Numbers = SMALL

    @property
    def kind(self) -> Hashable:
        """Equal for layers that share a Program."""
        return self.layer.shape_key, self.lowering

    @property
    def family(self) -> Family:
        """The family of the machine."""
        return family_of(self.machine)


class Need(NamedTuple):
    """Bytes that a layer takes at most, about: its Program and its time, its values."""

    program: int
    values: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.program + self.values


@dataclass(frozen=True)
class Room:
    """What each shape of a workload needs, by `Asked.kind`, and the bytes that are free besides the neediest."""

    needs: Mapping[Hashable, Need]
    spare: int

    @property
    def kept(self) -> int:
        """Bytes for Programs that wait for the next layer of their shape."""
        return self.spare // 2

    @property
    def ahead(self) -> int:
        """Bytes for layers whose values are checked while the next is lowered; 0 where there are none to lower it."""
        left = self.spare // 2 - max(need.program for need in self.needs.values())
        return max(need.total for need in self.needs.values()) + left if left >= 0 else 0


def need_of(asked: Asked, free: int = sys.maxsize) -> Need:
    """What simulating a layer takes. What is more than `free` for certain is not planned to be counted.

    Where the fastest of several lowerings is looked for, a Program is held beside the one that is tried: what the
    event engine notes of a Program, about as much again, is gone by then.
    """
    plans = _plans(asked, free)
    neediest, *others = sorted((plan.bytes for plan in plans for _ in range(plan.at_once)), reverse=True)
    return Need(neediest + sum(others[:1]) // 2, max(_values(asked, planned) for planned in plans))


def room_for(
    workload: Workload, machine: Machine, lowering: str, engine: str, check: bool, numbers: Numbers = SMALL
) -> Room:
    """Look at every layer before the first is simulated.

    Raises:
        InputError: when one needs more memory than there is, names the neediest and says what would fit all layers;
            when a lowering is unknown, says where; or when a layer cannot fit the machine (CapacityError).
    """
    free = free_bytes() - PROCESS_BYTES
    shapes: dict[Hashable, Asked] = {}
    for layer, name in asked_of(workload, lowering, family_of(machine)):
        asked = Asked(layer, workload.batch, machine, name, engine, check, numbers)
        shapes.setdefault(asked.kind, asked)
    needs = {}
    for shape, asked in shapes.items():
        with at_its_place(workload, asked.layer):
            needs[shape] = need_of(asked, free)
    # The neediest first, which is what advice mostly fails by.
    neediest = sorted(shapes, key=lambda shape: -needs[shape].total)
    spare = free - needs[neediest[0]].total
    if spare < 0:
        raise _refusal([shapes[shape] for shape in neediest], free)
    return Room(needs, spare)


def _refusal(layers: Sequence[Asked], free: int) -> InputError:
    """The message about the first of `layers`, the neediest."""
    asked = layers[0]
    need = need_of(asked, free).total + PROCESS_BYTES
    passes = [planned.passes for planned in _plans(asked, free) if planned.passes is not None]
    if not passes:
        says = f"needs about {_giga(need - PROCESS_BYTES)} GB of memory, and {_giga(max(0, free))} GB are free"
        says += "; take a smaller --batch, or --no-check" if asked.check else "; take a smaller --batch"
        return InputError(Problem(says, f"layer {asked.layer.name}"))
    problem = f"{max(passes):,} passes{' and the values to check' if asked.check else ''}"
    problem += f" need about {_giga(need)} GB of memory, and {_giga(free + PROCESS_BYTES)} GB are free"
    return InputError(Problem(f"{problem}; {_advice(layers, free)}", f"layer {asked.layer.name}"))


def _plans(asked: Asked, free: int) -> list[Planned]:
    """What each lowering takes that may be taken and fits."""
    layer, batch, machine, family = asked.layer, asked.batch, asked.machine, asked.family
    names = tried(asked.lowering, layer, batch, family)
    return [*fitting(names, lambda name: family.planned(layer, batch, machine, name, free))]


def _values(asked: Asked, planned: Planned) -> int:
    layer, batch, machine = asked.layer, asked.batch, asked.machine
    how = Checking(asked.engine, asked.check, asked.numbers.of(layer).operand_bytes)
    return asked.family.value_bytes(layer, batch, machine, planned, how)


def _advice(layers: Sequence[Asked], free: int) -> str:
    """What all layers would fit with, as people write it."""
    fits = [text for text, others in _smaller(layers) if _fit(others, free)][:1]
    if layers[0].check and _fit([each._replace(check=False) for each in layers], free):
        fits.append("--no-check")
    fits = fits or [text for text, others in _on_larger(layers) if _fit(others, free)][:1]
    return f"{' or '.join(fits)} would fit" if fits else "nothing like it would fit"


def _fit(layers: Sequence[Asked], free: int) -> bool:
    return all(_fits(asked, free) for asked in layers)


def _fits(asked: Asked, free: int) -> bool:
    try:
        return need_of(asked, free).total <= free
    except CapacityError:
        return False


def _smaller(layers: Sequence[Asked]) -> Iterator[tuple[str, Sequence[Asked]]]:
    """The first with ever less input, and the others with the batch that it has then."""
    first, *others = layers
    layer, batch = first.layer, first.batch
    while (less := layer.with_less_input(batch)) is not None:
        layer, batch, text = less
        yield text, [first._replace(layer=layer, batch=batch), *(each._replace(batch=batch) for each in others)]


def _on_larger(layers: Sequence[Asked]) -> Iterator[tuple[str, Sequence[Asked]]]:
    """On ever larger machines."""
    for option, machine in layers[0].family.larger(layers[0].machine):
        yield option, [each._replace(machine=machine) for each in layers]


def _giga(size: int) -> str:
    return f"{size / 1e9:,.1f}"
