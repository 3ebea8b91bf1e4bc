"""What may be made easier, one thing at a time: each relaxation changes the machine or the work, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tpusim.base.units import BANDWIDTH, SIZE
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.network.ops import Op


@dataclass(frozen=True)
class Case:
    """What is timed: one layer for a batch, on a machine."""

    layer: Op
    batch: int
    hardware: Hardware
    lowering: str = "channel_first"


@dataclass(frozen=True)
class Relaxed:
    """A case with one thing made easier, and what was done, as short as can be."""

    case: Case
    how: str


@dataclass(frozen=True)
class Relaxation:
    """One thing made easier.

    `limit` names what it relieves (a key of LIMITS); `name` says in words what is assumed. `change` returns None
    where the case has nothing of the kind to relax, and raises InputError where the result would be out of range.
    `per` is what cycles are counted by where the amount of work changes: "image", "row" or "MAC"; else "layer".
    """

    name: str
    limit: str
    change: Callable[[Case], Relaxed | None]
    per: str = "layer"


def relaxations(case: Case) -> tuple[Relaxation, ...]:
    """Everything that is tried."""
    return (*_MACHINE, _WHOLE_ROWS, _MORE_INPUT[case.layer.counted_by], _FILLED)


def _machine(settings: Callable[[Hardware], list[str]]) -> Callable[[Case], Relaxed | None]:
    """A change of the machine alone, by `--set` texts; none: there is nothing to relax."""

    def change(case: Case) -> Relaxed | None:
        wanted = settings(case.hardware)
        if not wanted:
            return None
        return Relaxed(replace(case, hardware=case.hardware.with_overrides(wanted)), " ".join(wanted))

    return change


def _bandwidth(hardware: Hardware) -> list[str]:
    return [f"hbm.bandwidth={BANDWIDTH.format(2 * hardware.hbm.bandwidth_bytes_per_s)}"]


def _latency(hardware: Hardware) -> list[str]:
    # Latency is counted in whole cycles, so that this is one cycle.
    return ["hbm.latency=1 ps"] if hardware.latency_cycles > 1 else []


def _word(hardware: Hardware) -> list[str]:
    """Conversions take as long for an element as before."""
    unit = hardware.vector_unit
    slower = [("unpack_cycles", unit.unpack_cycles), ("pack_cycles", unit.pack_cycles)]
    return [
        f"vector_memory.word_elements={2 * hardware.vector_memory.word_elements}",
        *(f"vector_unit.{name}={2 * cycles}" for name, cycles in slower if cycles),
    ]


def _ports(hardware: Hardware) -> list[str]:
    return ["vector_memory.ports=separate"] if hardware.vector_memory.ports == "shared" else []


def _capacity(hardware: Hardware) -> list[str]:
    return [f"vector_memory.capacity={SIZE.format(2 * hardware.vector_memory.capacity_bytes)}"]


def _vector_unit(hardware: Hardware) -> list[str]:
    unit = hardware.vector_unit
    faster = [("unpack_cycles", unit.unpack_cycles), ("pack_cycles", unit.pack_cycles)]
    return [
        f"vector_unit.alus={2 * unit.alus}",
        *(f"vector_unit.{name}={cycles // 2}" for name, cycles in faster if cycles),
    ]


def _weight_rate(hardware: Hardware) -> list[str]:
    return [f"array.weights_per_cycle={2 * hardware.array.weights_per_cycle}"]


def _weight_buffers(hardware: Hardware) -> list[str]:
    return ["array.weight_buffers=2"] if hardware.array.weight_buffers == 1 else []


def _arrays(hardware: Hardware) -> list[str]:
    return [f"array.count={2 * hardware.array.count}"]


def _size(hardware: Hardware) -> list[str]:
    """A lane comes with its ALUs, as under array.size."""
    array = hardware.array
    sides = [f"array.rows={2 * array.rows}", f"array.cols={2 * array.cols}"]
    return [*sides, f"vector_unit.alus={2 * hardware.vector_unit.alus}"]


def _overlap(hardware: Hardware) -> list[str]:
    return ["sequencer.between_blocks=overlap"] if hardware.sequencer.between_blocks == "drain" else []


def _launch(hardware: Hardware) -> list[str]:
    return ["sequencer.launch_cycles=0"] if hardware.sequencer.launch_cycles else []


def _loop_order(hardware: Hardware) -> list[str]:
    return ["mapping.loop_order=auto"] if hardware.mapping.loop_order != "auto" else []


def _whole_rows(case: Case) -> Relaxed | None:
    """Where it stacks more taps than now."""
    relaxed = _machine(lambda hardware: ["mapping.multi_tile=rows"])(case)
    return relaxed if relaxed and _stacked(relaxed.case) > _stacked(case) else None


def _stacked(case: Case) -> int:
    """Taps that the lowering stacks in a pass."""
    return lowered(case.layer, case.batch, case.hardware, case.lowering)[1].multi_tile


def _more_input(case: Case) -> Relaxed:
    layer, batch, how = case.layer.with_more_input(case.batch)
    return Relaxed(replace(case, layer=layer, batch=batch), how)


def _filled(case: Case) -> Relaxed | None:
    """Channels rounded up to what fills every row and column: the waste of the mapping, and only that, is gone."""
    filled, how = case.layer.filled(case.hardware.array.rows, case.hardware.array.cols)
    return None if filled == case.layer else Relaxed(replace(case, layer=filled), how)


_MACHINE = (
    Relaxation("twice the arrays", "array", _machine(_arrays)),
    Relaxation("twice the HBM bandwidth", "hbm", _machine(_bandwidth)),
    Relaxation("HBM latency of one cycle", "latency", _machine(_latency)),
    Relaxation("a port for every client", "ports", _machine(_ports)),
    Relaxation("words twice as long", "ports", _machine(_word)),
    Relaxation("weights enter twice as fast", "weights", _machine(_weight_rate)),
    Relaxation("a second weight buffer", "weights", _machine(_weight_buffers)),
    Relaxation("twice the vector memory", "memory", _machine(_capacity)),
    Relaxation("a vector unit twice as fast", "vector_unit", _machine(_vector_unit)),
    Relaxation("blocks that overlap", "sequencer", _machine(_overlap)),
    Relaxation("no launch", "sequencer", _machine(_launch)),
    Relaxation("the loop order left open", "mapping", _machine(_loop_order)),
)
_WHOLE_ROWS = Relaxation("whole filter rows stacked", "mapping", _whole_rows)
_MORE_INPUT = {
    "image": Relaxation("twice the batch", "input", _more_input, "image"),
    "row": Relaxation("twice the rows of input", "input", _more_input, "row"),
}
_FILLED = Relaxation("every PE filled", "mapping", _filled, "MAC")
LARGER = Relaxation("twice the rows and columns", "array", _machine(_size))
"""Tried when nothing gains but more input: an array that is full, on ports too full for another.

It brings lanes, with their ports and memories, so that it gains also where those are what is short.
"""
