"""Things that may be made easier, one at a time: each relaxation changes the machine or the work, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from tpusim.base.units import UNITS
from tpusim.flow.jobs import Jobs, alone
from tpusim.flow.lowerings import USUAL_FAMILY, prepared
from tpusim.flow.simulation import layers_of
from tpusim.input.scalars import plain_number
from tpusim.machines.family import family_of
from tpusim.network.ops.op import Op
from tpusim.result.records import LayerResult
from tpusim.result.vocabulary.fields import by_path

_ALUS, _WORD = "vector_unit.alus", "vector_memory.word_elements"
_CONVERSIONS = ("unpack", "pack", "stack", "gather", "relayout", "operand", "result", "ready")
_A_WORD = tuple([f"vector_unit.{what}_cycles" for what in _CONVERSIONS])
"""Fields with the cycles of the vector unit for a word, which are fractions."""

Setting = str | int | Callable[[Any], object]


class Timings:
    """The layers that were timed, each kind once on each machine, and the number of simulations that took."""

    def __init__(self) -> None:
        self.simulations = 0
        self._known: dict[Hashable, LayerResult] = {}

    def layer(self, layer: Op, batch: int, hardware: Any, lowering: str) -> LayerResult:
        """Return the layer by itself, timing alone. Raises InputError when it cannot be simulated."""
        jobs = alone(layer, batch, hardware, lowering)
        key = jobs.kinds, batch, hardware
        if key not in self._known:
            (self._known[key],) = self.network(jobs)
        # Equal layers have names of their own.
        return self._known[key].called(layer.name, (), (), "")

    def network(self, jobs: Jobs) -> tuple[LayerResult, ...]:
        """Return the layers of jobs that run together. Raises InputError when they cannot be simulated."""
        self.simulations += 1
        return layers_of(jobs)

    def plan(self, ready: Any, hardware: Any) -> int:
        """Return the cycles of the plan of a layer that is ready, on another machine."""
        self.simulations += 1
        return int(ready.on(hardware).timing.cycles)


@dataclass(frozen=True)
class Setup:
    """A layer to be timed, with its batch, on a machine of any family, and what was timed so far."""

    layer: Op
    batch: int
    hardware: Any
    lowering: str = "channel_first"
    timings: Timings = field(default_factory=Timings, compare=False, repr=False)

    @property
    def is_of_lanes(self) -> bool:
        """Whether the machine has lanes, as TPUs have."""
        return family_of(self.hardware).lanes(self.hardware) is not None

    @cached_property
    def ready(self) -> Any:
        """The layer made ready by its family. Raises as `prepared`."""
        return prepared(self.layer, self.batch, self.hardware, self.lowering)

    def timed(self) -> LayerResult:
        """The layer, timing alone. Raises InputError when it cannot be simulated."""
        return self.timings.layer(self.layer, self.batch, self.hardware, self.lowering)


Relaxed = tuple[Setup, str]
"""A setup with one thing made easier, and the shortest name for that."""


@dataclass(frozen=True)
class Relaxation:
    """A thing made easier.

    `limit` is the key of what it relieves, for reports; `name` says what is assumed. `change` returns None
    if the setup has nothing of the kind to relax, and raises InputError if the result would be out of range.
    `per` is the unit of work by which cycles are counted: "image", "row" or "MAC" if the work changes; else "layer".
    An `ideal` relaxation shows a loss; no machine or option can provide it.
    `alone` gives the gain by the plan of the present setup, from that and the easier setup; it is None, or returns
    None, if the steps would differ. `keeps` tells whether the easier setup may be run by that plan, too.
    """

    name: str
    limit: str
    change: Callable[[Setup], Relaxed | None]
    per: str = "layer"
    ideal: bool = False
    alone: Callable[[Setup, Setup], float | None] | None = None
    keeps: bool = True


def _same_steps(setup: Setup, easier: Setup) -> float:
    """The gain of the same steps on the easier machine."""
    # The same plan on both machines: the gain is that of the change, not of another choice of blocks.
    return int(setup.ready.timing.cycles) / setup.timings.plan(setup.ready, easier.hardware)


def _same_without_delays(setup: Setup, easier: Setup) -> float | None:
    """The gain of the present steps; None if one has a delay, which belongs to the present vector unit."""
    return None if setup.ready.program.rows.table["delay"].any() else _same_steps(setup, easier)


def _same_passes(setup: Setup, easier: Setup) -> float:
    """The gain if all PEs were in use in every pass, with the same cycles."""
    streams, array = setup.ready.program.streams, setup.hardware.array
    return len(streams) / float(sum(stream.rows * stream.cols for stream in streams) / (array.rows * array.cols))


def relaxations(setup: Setup) -> tuple[Relaxation, ...]:
    """All relaxations of a setup; on a machine without lanes, the relaxations of its family, and more input."""
    counted_by = setup.layer.counted_by
    if setup.is_of_lanes:
        return (*_MACHINE, _WHOLE_ROWS, _MORE_INPUT[counted_by], _FILLED)
    ways = family_of(setup.hardware).easier(setup.hardware)
    made = (Relaxation(name, "", partial(_eased, changes)) for name, changes in ways.items())
    return (*made, *([_MORE_INPUT[counted_by]] if counted_by == "image" else []))


def _eased(changes: Mapping[str, object], setup: Setup) -> Relaxed:
    how = " ".join(f"{path}={value}" for path, value in changes.items())
    return replace(setup, hardware=setup.hardware.with_overrides(changes)), how


def _machine(
    settings: Mapping[str, Setting], where: Callable[[Any], object] = lambda _: True
) -> Callable[[Setup], Relaxed | None]:
    """A change of the machine alone: a new value by path, or a function of the old value.

    Nothing is tried if no value is new, or if the machine is not one `where` it has a meaning.
    """

    def change(setup: Setup) -> Relaxed | None:
        if not where(setup.hardware):
            return None
        written = dict(by_path(setup.hardware.to_dict()))
        # As files write them, because relaxations are told in the words of a file.
        before = {path: written[path] for path in settings}
        after = {path: value(before[path]) if callable(value) else value for path, value in settings.items()}
        changes = {path: value for path, value in after.items() if value != before[path]}
        how = " ".join(f"{path}={value}" for path, value in changes.items())
        return (replace(setup, hardware=setup.hardware.with_overrides(changes)), how) if changes else None

    return change


def _twice(value: Any) -> object:
    """Return twice a number, or a quantity with its unit."""
    unit = next((unit for unit in UNITS if str(value).split()[-1] in unit.scales), None)
    return 2 * value if unit is None else unit.format(2 * unit.parse(value))


def _half(value: Any) -> object:
    """Return half of a whole number, rounded up."""
    return -(-value // 2)


def _scaled(by: Fraction) -> Callable[[Any], object]:
    """A multiple of a number that may be a fraction, as files write it."""
    return lambda value: plain_number(by * Fraction(str(value)))


def _longer_words(setup: Setup) -> Relaxed | None:
    """Longer words, with the vector unit as slow for an element as before."""
    settings: dict[str, Setting] = {_WORD: _twice, **dict.fromkeys(_A_WORD, _scaled(Fraction(2)))}
    if setup.hardware.vector_unit.transpose_cycles:
        settings["vector_unit.transpose_words"] = _half
    return _machine(settings)(setup)


def _faster(setup: Setup) -> Relaxed | None:
    """A vector unit with twice the ALUs and slots, which takes half as long for a word."""
    settings: dict[str, Setting] = {_ALUS: _twice, **dict.fromkeys(_A_WORD, _scaled(Fraction(1, 2)))}
    settings["vector_unit.transpose_cycles"] = _half
    if setup.hardware.vector_unit.slots:
        settings |= dict.fromkeys(("vector_unit.slots.loads", "vector_unit.slots.stores"), _twice)
    return _machine(settings)(setup)


def _bandwidth(setup: Setup) -> Relaxed | None:
    """HBM with twice the bandwidth, a DRAM with twice the channels."""
    device = setup.hardware.hbm.dram
    if device is None:
        return _machine({"hbm.bandwidth": _twice})(setup)
    # A DRAM has no bandwidth to set; more channels give it.
    wider = device.with_overrides({"organisation.channels": 2 * device.organisation.channels})
    hardware = setup.hardware.having("hbm", device=wider, mapping=None)
    return replace(setup, hardware=hardware), f"{wider.channels} channels"


def _whole_rows(setup: Setup) -> Relaxed | None:
    """Whole filter rows, if these stack more taps than now."""
    relaxed = _machine({"mapping.multi_tile": "rows"})(setup)
    return relaxed if relaxed and _stacked(relaxed[0]) > _stacked(setup) else None


def _stacked(setup: Setup) -> int:
    """Taps that the lowering stacks in a pass."""
    taps: int = setup.ready.explanation.multi_tile
    return taps


def _more_input(setup: Setup) -> Relaxed:
    layer, batch, how = setup.layer.with_more_input(setup.batch)
    return replace(setup, layer=layer, batch=batch), how


def _filled(setup: Setup) -> Relaxed | None:
    """Channels rounded up to fill every row and column, so that the waste of the mapping, and nothing else, is gone."""
    more = setup.layer.filled(setup.hardware.array.rows, setup.hardware.array.cols)
    return None if more is None or more[0] == setup.layer else (replace(setup, layer=more[0]), more[1])


_OPEN: Mapping[str, Setting] = {path: "auto" for path in USUAL_FAMILY.paths() if path.startswith("mapping.block.")}


def _set(
    name: str, limit: str, settings: Mapping[str, Setting], where: Callable[[Any], object] = lambda _: True, **more: Any
) -> Relaxation:
    """A change of the machine alone after which the same steps may be taken, unless `more` says otherwise."""
    return Relaxation(name, limit, _machine(settings, where), **{"alone": _same_steps, **more})


_MACHINE = (
    _set("twice the arrays", "array", {"array.count": _twice}),
    Relaxation("twice the HBM bandwidth", "hbm", _bandwidth, alone=_same_steps),
    # Another layout of all maps matters only where it decides which rows of a DRAM are opened.
    *(
        _set(f"feature maps as {order} in HBM", "rows", {"hbm.layout": order}, lambda each: each.hbm.dram, alone=None)
        for order in ("HWC", "HWCN", "CHW")
    ),
    _set("HBM without rows and banks", "rows", {"hbm.model": "pipe"}, lambda each: each.hbm.dram, ideal=True),
    # Latency is counted in whole cycles, so 1 ps is one cycle. A DRAM has its own times.
    _set("HBM latency of one cycle", "latency", {"hbm.latency": "1 ps"},
         lambda each: not each.hbm.dram and each.latency_cycles > 1),
    _set("a port for every client", "ports", {"vector_memory.ports": "separate"}),
    _set("twice the ports of a bank", "banks", {"vector_memory.bank_ports": _twice}, lambda each: each.banked),
    Relaxation("words twice as long", "ports", _longer_words),
    _set("weights enter twice as fast", "weights", {"array.weights_per_cycle": _twice}),
    _set("a second weight buffer", "weights", {"array.weight_buffers": 2}),
    _set("twice the vector memory", "memory", {"vector_memory.capacity": _twice}),
    Relaxation("a vector unit twice as fast", "vector_unit", _faster, alone=_same_without_delays),
    _set("blocks that overlap", "sequencer", {"sequencer.between_blocks": "overlap"}, alone=None),
    _set("blocks that take nothing beyond their steps", "sequencer", {"sequencer.block_cycles": 0}, alone=None),
    _set("no launch", "sequencer", {"sequencer.launch_cycles": 0}),
    _set("an ifmap whose words are ready", "vector_unit", {"mapping.entry": "ready"}, alone=None),
    _set("the block left open", "block", _OPEN),
    _set("the loop order left open", "mapping", {"mapping.loop_order": "auto"}),
    _set("chunks where they are cheaper", "mapping", {"mapping.chunks": "auto"}),
)  # fmt: skip
_WHOLE_ROWS = Relaxation("whole filter rows stacked", "mapping", _whole_rows, alone=_same_steps, keeps=False)
_MORE_INPUT = {
    "image": Relaxation("twice the batch", "input", _more_input, "image"),
    "row": Relaxation("twice the rows of input", "input", _more_input, "row"),
}
_FILLED = Relaxation("every PE filled", "mapping", _filled, "MAC", ideal=True, alone=_same_passes, keeps=False)
_LARGER = {"array.rows": _twice, "array.cols": _twice, _ALUS: _twice}
LARGER = _set("twice the rows and columns", "array", _LARGER, alone=None)
"""A larger array, tried when nothing gains but more input: for an array that is full, and ports too full for a second
array.

It brings lanes with ALUs, ports and memories, so it also gains where these are short.
"""
