"""A Program in the words of the hardware witness: the one place of `tests/hdl` that knows the classes of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.hdl import plan as hdl
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Counters
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.program.transfers import Fill, Spill, Transfer
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.reference import Tensor


def plan_of(program: Program, hardware: Hardware) -> hdl.Plan:
    """What the hardware must know of a Program before the first cycle."""
    array, unit, steps = hardware.array, hardware.vector_unit, list(enumerate(program.rows))
    preloads = [index for index, step in steps if isinstance(step, Preload)]
    return hdl.Plan(
        rows=array.rows,
        cols=array.cols,
        arrays=array.count,
        word=hardware.vector_memory.word_elements,
        word_bytes=hardware.word_bytes,
        elements=program.word_fill,
        alus=unit.alus,
        unpack_cycles=unit.unpack_cycles,
        pack_cycles=unit.pack_cycles,
        word_cycles=program.word_cycles,
        buffers=array.weight_buffers,
        depth=program.words,
        bytes_per_cycle=hardware.hbm_bytes_per_cycle,
        latency=hardware.latency_cycles,
        launch=hardware.sequencer.launch_cycles,
        weights=tuple(
            hdl.Weights(index, step.after, step.base, step.rows, step.cols, step.delay)
            for index, step in steps
            if isinstance(step, Preload)
        ),
        passes=tuple(
            pass_of(program, index, step, preloads.index(step.preload), hardware.lanes)
            for index, step in steps
            if isinstance(step, Stream)
        ),
        transfers=tuple(
            hdl.Transfer(index, step.after, kind_of(step), step.words, step.hbm_bytes)
            for index, step in transfers_of(program)
        ),
    )


def kind_of(step: Transfer) -> str:
    """What paces it beside HBM: whether its numbers are converted, and which way."""
    return "spill" if isinstance(step, Spill) else step.tensor.name


def pass_of(program: Program, index: int, step: Stream, weights: int, lanes: int) -> hdl.Pass:
    """One stream; its lanes begin where their group's pattern does."""
    starts: list[tuple[int, int, int] | None] = [None] * lanes
    for group in step.reads.groups:
        assert isinstance(group.pattern, Counters)
        assert group.pattern.window is None
        row, col, _ = group.pattern.counters
        for lane in range(group.first_lane, group.first_lane + group.lanes):
            starts[lane] = (group.pattern.base, row.start, col.start)
    needs = {*step.after, *program.rows[step.preload].after}
    return hdl.Pass(
        step=index,
        fills=tuple(sorted(other for other in needs if isinstance(program.rows[other], Fill))),
        spills=tuple(other for other in step.after if isinstance(program.rows[other], Spill)),
        weights=weights,
        starts=tuple(starts),
        counts=tuple(each.length for each in group.pattern.counters),
        stride=(row.step, col.step),
        extent=(row.extent, col.extent),
        result_base=step.result_base,
        cols=step.cols,
        accumulate=step.accumulate,
    )


@dataclass
class Words:
    """The words of a transfer: their addresses, the lanes [lane, word] that take part, values [lane, word, W]."""

    addresses: NDArray[np.int64]
    lanes: NDArray[np.bool_]
    values: Tensor


@dataclass
class Outside:
    """HBM: the words of every transfer, those of a spill as they come."""

    program: Program
    hbm: HbmWords
    words: dict[int, Words]

    @classmethod
    def of(cls, program: Program, hardware: Hardware, operands: dict[str, Tensor]) -> Outside:
        """HBM before the first cycle; transfers by their number among all transfers."""
        hbm = HbmWords(program, operands, hardware.vector_memory.word_elements)
        words = {}
        for index, step in transfers_of(program):
            hbm.fetch(index)
            lanes = np.zeros((hardware.lanes, step.words), np.bool_)
            values = np.zeros((*lanes.shape, hbm.values.shape[1]), np.float32)
            lanes[: step.lanes] = hbm.share(index, hbm.used)
            values[: step.lanes] = hbm.share(index, hbm.values)
            words[len(words)] = Words(hbm.addresses[index], lanes, values)
        return cls(program, hbm, words)

    @property
    def ofmap(self) -> Tensor:
        """What has been spilled."""
        for number, (index, step) in enumerate(transfers_of(self.program)):
            if isinstance(step, Spill):
                self.hbm.share(index, self.hbm.values)[...] = self.words[number].values[: step.lanes]
                self.hbm.spilled.append(index)
        return self.hbm.tensor("ofmap")


def transfers_of(program: Program) -> list[tuple[int, Transfer]]:
    """Every transfer and its index among the steps."""
    return [(index, step) for index, step in enumerate(program.rows) if isinstance(step, Transfer)]
