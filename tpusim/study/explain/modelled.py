"""What bounds a layer on a machine of any family: it is timed again and again, each time with one thing made easier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tpusim.base.errors import InputError, UnsuitableError
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Family, Machine, family_of
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult

Watch = Callable[[int, str], None]
"""Told how much has been tried, and what comes next."""

INPUT = "twice the batch, by the image"


@dataclass(frozen=True)
class Asked:
    """A layer for a batch on a machine, by a lowering."""

    layer: Op
    batch: int
    machine: Machine
    lowering: str

    @property
    def family(self) -> Family:
        """The family of the machine."""
        return family_of(self.machine)


@dataclass(frozen=True)
class Easier:
    """A thing made easier: in words, by which changes, its cycles, and how many times as fast work is then."""

    name: str
    how: str
    cycles: int
    gain: float


@dataclass(frozen=True)
class Left:
    """What could not be tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Explained:
    """A layer as it is; what would help, the most first; what it takes by each lowering, the fastest first."""

    asked: Asked
    layer: LayerResult
    easier: tuple[Easier, ...]
    untried: tuple[Left, ...]
    by_lowering: tuple[LayerResult, ...]
    unfit: tuple[Left, ...]


def steps(asked: Asked) -> int:
    """How much is tried."""
    return 2 + len(asked.family.easier(asked.machine)) + len(asked.family.lowerings)


def explain(asked: Asked, watch: Watch) -> Explained:
    """Time it as it is, with each thing made easier, and by each lowering.

    Raises:
        InputError: when it cannot run as it is.
    """
    watch(0, "as it is")
    layer = _timed(asked)
    tried, left = [*_tried(asked, layer, watch)], 1 + len(asked.family.easier(asked.machine)) + 1
    easier = sorted((each for each in tried if isinstance(each, Easier)), key=lambda each: -each.gain)
    ways = [*_ways(asked, lambda done, name: watch(left + done, name))]
    fit = sorted((each for each in ways if isinstance(each, LayerResult)), key=lambda each: each.cycles)
    return Explained(
        asked, layer, tuple(easier), tuple(each for each in tried if isinstance(each, Left)),
        tuple(fit), tuple(each for each in ways if isinstance(each, Left)),
    )  # fmt: skip


def _timed(asked: Asked, batch: int = 0, changes: Mapping[str, object] | None = None) -> LayerResult:
    machine = asked.machine.with_overrides(changes) if changes else asked.machine
    work = Workload("explained", batch or asked.batch, (asked.layer,))
    return simulate(work, machine, lowering=asked.lowering, check=False).layers[0]


def _tried(asked: Asked, layer: LayerResult, watch: Watch) -> Iterator[Easier | Left]:
    """Each thing of the machine made easier, and twice the input, where the layer is counted by images."""
    ways = asked.family.easier(asked.machine)
    for done, (name, changes) in enumerate(ways.items(), 1):
        watch(done, name)
        how = ", ".join(f"{path} {value}" for path, value in changes.items())
        try:
            cycles = _timed(asked, changes=changes).cycles
        except InputError as error:
            yield Left(name, error.problems[0].message)
        else:
            yield Easier(name, how, cycles, layer.cycles / cycles)
    if asked.layer.counted_by == "image":
        watch(1 + len(ways), INPUT)
        cycles = _timed(asked, 2 * asked.batch).cycles
        yield Easier(INPUT, f"batch {2 * asked.batch}", cycles, 2 * layer.cycles / cycles)


def _ways(asked: Asked, watch: Watch) -> Iterator[LayerResult | Left]:
    for done, name in enumerate(asked.family.lowerings):
        watch(done, f"by {name}")
        try:
            yield _timed(Asked(asked.layer, asked.batch, asked.machine, name))
        except UnsuitableError:
            continue
        except InputError as error:
            yield Left(name, error.problems[0].message)
