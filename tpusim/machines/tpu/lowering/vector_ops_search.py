"""The blocks of an op of the vector unit: the cheapest that fit, by their estimate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.definition.beat import beat_of, ready_delay
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.geometry import InStrips
from tpusim.machines.tpu.lowering.maps import CHANNEL, COL, ROW
from tpusim.machines.tpu.lowering.search import TOLERANCE
from tpusim.machines.tpu.lowering.tiling import Tiling
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.turned import Moved, boxes_of
from tpusim.machines.tpu.lowering.vector_ops_plan import VectorOpPlan
from tpusim.machines.tpu.lowering.vector_search import VectorCosts
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.network.ops.op import OFMAP


@lru_cache(maxsize=1 << 12)
def tiling_of(plan: VectorOpPlan) -> Tiling[int]:
    """The blocks of the lowest estimate.

    Raises:
        CapacityError: when not even a block of one output word fits, or lanes cannot keep the scalars.
    """
    unit = plan.hardware.vector_unit
    if len(plan.scalars) > unit.scalar_words:
        says = f"a lane keeps {unit.scalar_words} words of scalars, and the op has {len(plan.scalars)}"
        raise CapacityError(Problem(f"{says}; give it more", "vector_unit.scalar_words"))
    return _Costs(plan.hardware, plan).chosen()


@dataclass(frozen=True)
class _Costs(VectorCosts):
    """What blocks take of memory, and about how long."""

    close = TOLERANCE

    plan: VectorOpPlan

    @property
    def outputs(self) -> InStrips:
        return self.plan.outputs

    @property
    def portions(self) -> int:
        return len(self.plan.portions)

    def map_words(self, rows: int, cols: int, groups: int) -> int:
        return sum(self._map_words(rows, cols, groups))

    @property
    def scalar_words(self) -> int:
        return len(self.plan.scalars)

    def worked(self, tiling: Tiling[int]) -> tuple[float, int]:
        hardware = self.hardware
        cycles, read = float(delay_of(tiling.ifmap_words, hardware)), 0
        for operation, together in self.plan.steps(self.plan.operands):
            operands = len(together) + (together.start > 0)
            counts = Arity(operands, len(self.plan.scalars), 0)
            operations = sum(work_of(operation, counts, (), hardware.vector_unit))
            beat = beat_of(operands, operations, self.word_groups[1], hardware)
            cycles += tiling.psum_words * beat.period + beat.result_delay
            read += tiling.psum_words * (operands + 1)
        return cycles, read

    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        if self.plan.moved is not None:
            return self._just_moved(self.plan.moved, tiling)
        unit, channels = self.hardware.vector_unit, min(self.hardware.lanes, self.plan.shapes[OFMAP][0])
        spilled = self.map_cycles(tiling.psum_words, tiling.groups, channels, float(unit.pack_cycles))
        sizes, filled = self._map_words(tiling.rows, tiling.cols, tiling.groups), 0.0
        for source, words in zip(self.plan.maps, sizes, strict=True):
            into = 1 if source.spread[CHANNEL] else channels
            filled += self.map_cycles(words, tiling.groups, into, float(unit.unpack_cycles))
        return filled, spilled

    def _just_moved(self, moved: Moved, tiling: Tiling[int]) -> tuple[float, float]:
        """The cycles to move the first block in and out: runs are as long as they are along the axes of both maps."""
        plan, unit, (_, fill) = self.plan, self.hardware.vector_unit, self.word_groups
        patch = Patch(range(tiling.rows), range(tiling.cols), range(tiling.groups))
        made = moved.made(plan.outputs, plan.portions[0], patch, 0, fill)
        parts = (plan.maps[0].tensor, moved.read(made), unit.unpack_cycles), (plan.ofmap, made, unit.pack_cycles)
        filled, spilled = (
            max(
                self._traffic.of(boxes_of(part), tensor, (0, 0)).bytes / float(self.hardware.hbm_bytes_per_cycle),
                tiling.psum_words * float(conversion),
            )
            for tensor, part, conversion in parts
        )
        return filled, spilled

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self.outputs, self.hardware)

    def cycles(self, tiling: Tiling[int]) -> float:
        """The bus is never idle but at the ends, or the vector unit is not, or a block waits for what comes for it.

        Of two buffers of a kind one is filled while the other is worked on, and two transfers may be under way.
        """
        (worked, read), (filled, spilled) = self.worked(tiling), self.moved(tiling)
        units, latency = tiling.blocks * self.portions, self.hardware.latency_cycles
        port = read + tiling.ifmap_words + tiling.psum_words
        turn = max(worked, port, filled + latency, (latency + worked + filled + spilled) / 2)
        exposed = max(0.0, worked + latency - spilled) if units > 1 else worked
        bus = units * (filled + spilled) + exposed
        return max(bus, units * turn + filled + spilled) + 2 * latency

    def _map_words(self, rows: int, cols: int, groups: int) -> list[int]:
        """What a block needs of each map at most."""
        row, col = self.outputs.row, self.outputs.col
        high, wide = row.most_stored(rows), col.most_stored(cols)
        return [
            (1 if each.spread[ROW] else high) * (1 if each.spread[COL] else wide) * groups for each in self.plan.maps
        ]


def delay_of(words: int, hardware: Hardware) -> int:
    """What comes before a block: its turn of the loop, and its words made ready."""
    return hardware.sequencer.block_cycles + ready_delay(words, hardware)
