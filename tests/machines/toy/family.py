"""The toy family, whole: its description, its lowerings, its time by two interpreters, its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from tpusim import reference
from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.base.units import BANDWIDTH, FREQUENCY, SIZE
from tpusim.input.document import Document
from tpusim.input.form import (
    FROM_YAML,
    FileModel,
    Form,
    Name,
    Overrides,
    Quantity,
    read_overrides,
    texts_of,
    whole,
    written,
)
from tpusim.machines.family import CheckPlan, Family, Need
from tpusim.machines.lowered import Account, PlainTiming, ReadyLayer, SlotDrawing, Told
from tpusim.network.ops.op import Op
from tpusim.reference import Operands, Tensor

WRONG: set[str] = set()
"""Layers that come out wrong, by their names."""
SLOW: set[str] = set()
"""Layers of which the second interpreter disagrees."""


class Toy(FileModel):
    """So many MACs a cycle, behind memory of so many bytes a cycle."""

    name: Annotated[str, Name(), written("my_machine")]
    family: Literal["toy"] = "toy"
    clock_hz: Annotated[int, Quantity(FREQUENCY, "100 GHz"), written("1 GHz", "clock")]
    pes: Annotated[int, whole(10**6), written("16", "macs")]
    sram_bytes: Annotated[int, Quantity(SIZE, "1024 GiB"), written("1 MiB", "memory")]
    hbm_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "100 TB/s"), written("8 GB/s", "bandwidth")]

    @property
    def macs_per_cycle(self) -> int:
        return self.pes

    @property
    def element_bytes(self) -> int:
        return 1

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True)

    def of_type(self, name: str) -> Toy:
        """Itself."""
        return self

    def with_overrides(self, overrides: Overrides) -> Toy:
        return FAMILY.read(Document(self.name, self.to_dict()), overrides).telling(self.changes)


_FORM = Form(Toy)


@dataclass(frozen=True)
class ToyLowered(ReadyLayer):
    """One layer; the second lowering works at half the speed, in halves."""

    layer: Op
    batch: int
    machine: Toy
    lowering: str
    halves: int

    def account(self, layer: Op, batch: int, timing: PlainTiming) -> Account:
        return timing.account(self.lowering, {"halves": self.halves, "manner": self.lowering})

    @cached_property
    def timing(self) -> PlainTiming:
        """In closed form."""
        works = -(-self.layer.macs(self.batch) * self.halves // self.machine.pes) + 1
        moved = self.layer.operands(self.batch) + self.layer.outputs(self.batch)
        per_cycle = self.machine.hbm_bytes_per_s // self.machine.clock_hz
        waits = -(-moved // per_cycle)
        cycles = waits + works
        units = {
            "worker": {"busy": works, "waiting_bytes": waits - 1, "idle": 1},
            "hbm": {"busy": waits, "idle": works},
        }
        read = self.layer.operands(self.batch)
        return PlainTiming(cycles, units, read, moved - read, figures={"touched_bytes": moved, "rounds": self.halves})

    @property
    def to_step(self) -> int:
        return self.timing.cycles

    def stepped(self, operands: Callable[[], Operands], number: np.dtype[Any], told: Told) -> tuple[PlainTiming, None]:
        """Cycle by cycle."""
        timing, cycle, left = self.timing, 0, self.timing.cycles
        while left:
            cycle, left = cycle + 1, left - 1
        told(cycle)
        late = self.layer.name in SLOW
        return PlainTiming(**{**vars(timing), "cycles": cycle + late}), None

    def recorded(self) -> SlotDrawing:
        """It waits, works, and idles for a cycle."""
        timing = self.timing
        waits, works = timing.units["worker"]["waiting_bytes"], timing.units["worker"]["busy"]
        ends = waits, waits + works, timing.cycles
        worker = [(0, ends[0], "waiting_bytes"), (ends[0], ends[1], "busy"), (ends[1], ends[2], "idle")]
        return SlotDrawing(timing.cycles, {"worker": worker})

    def values(self, operands: Operands, number: np.dtype[Any], told: Told) -> Mapping[str, Tensor]:
        ofmap = reference.compute(self.layer, operands).astype(number)
        if self.layer.name in WRONG:
            ofmap[0, 0, 0, 0] += 1
        told(ofmap.size)
        return {"ofmap": ofmap}


class ToyFamily(Family):
    name = "toy"
    title = "a toy"
    engines = "event", "register", "both"
    lowerings: ClassVar[dict[str, str]] = {"plain": "all at once", "slow": "in halves"}
    partial = frozenset({"slow"})

    def glosses(self) -> Mapping[str, str]:
        return self.lowerings

    def paths(self) -> tuple[str, ...]:
        return _FORM.paths

    def model(self) -> type[Toy]:
        return Toy

    def read(self, document: Document, overrides: Overrides) -> Toy:
        given, refused = read_overrides(overrides, _FORM)
        for path, (value, where) in given.items():
            document = document.override(path, value, where)
        return _FORM.read(document, FROM_YAML, refused).telling(texts_of(given))

    def facts(self, machine: Toy) -> Mapping[str, str]:
        return {"MACs a cycle": f"{machine.pes}", "clock": FREQUENCY.format(machine.clock_hz)}

    def easier(self, machine: Toy) -> Mapping[str, Mapping[str, object]]:
        return {
            "twice the MACs": {"macs": 2 * machine.pes},
            "twice the bandwidth": {"bandwidth": BANDWIDTH.format(2 * machine.hbm_bytes_per_s)},
            "what nobody can build": {"macs": 0},
        }

    def planned(self, layer: Op, batch: int, machine: Toy, lowering: str, how: CheckPlan, most: int) -> Need:
        return Need(1000, how.whole(layer, batch))

    def lowered(self, layer: Op, batch: int, machine: Toy, lowering: str) -> ToyLowered:
        if lowering == "slow" and layer.op == "gemm":
            raise UnsuitableError(Problem("slow takes no products", f"layer {layer.name}"))
        if layer.operands(batch) > machine.sram_bytes:
            raise CapacityError(Problem("its operands do not fit", f"layer {layer.name}"))
        return ToyLowered(layer, batch, machine, lowering, 2 if lowering == "slow" else 1)


FAMILY = ToyFamily()
