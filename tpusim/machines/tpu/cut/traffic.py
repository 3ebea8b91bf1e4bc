"""What transfers take of the HBM bus: boxes of maps as lowerings stream them, and Programs as `hbm.layout` says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.geometry import InStrips, shifted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Explained, Program
from tpusim.machines.tpu.program.transfers import Part, Tensor, Transfer
from tpusim.machines.tpu.schedule import units
from tpusim.memory.layout import AS_READ, HWCN, Box, Layouts, Region, Stored, axes_of


class Moved(NamedTuple):
    """Bytes, and the rectangles of the tensor that they are."""

    bytes: int
    regions: tuple[Region, ...]


class Traffic:
    """What moves for boxes of maps that lie HWCN, whole bursts and padding included."""

    def __init__(self, shape: InStrips, hardware: Hardware) -> None:
        self.shape, self.hardware = shape, hardware
        self._known: dict[tuple[str, Box], Moved] = {}
        self._stored: dict[str, Stored] = {}

    def of(self, boxes: Iterable[Box], tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """What moves for boxes in every strip; strips lie `apart` (rows, cols) from one another."""
        each = [self._of(box, tensor, apart) for box in boxes]
        if len(each) == 1:
            return each[0]
        return Moved(sum([moved for moved, _ in each]), tuple([region for _, regions in each for region in regions]))

    def moves(self, tensor: Tensor, held: tuple[Part, Box], apart: tuple[int, int]) -> units.Moves:
        """A transfer of a part that is a box in each strip."""
        part, box = held
        return units.Moves(tensor, (part,), *self.of((box,), tensor, apart))

    def _of(self, box: Box, tensor: Tensor, apart: tuple[int, int]) -> Moved:
        """For one, worked out once: a chunk comes many times."""
        key = tensor.name, box
        if key not in self._known:
            (row, col), burst = (self.shape.row.strips, self.shape.col.strips), self.hardware.hbm.burst_bytes
            strips: tuple[Box, ...] = (box,)
            if row * col > 1:
                strips = tuple([
                    box._replace(rows=shifted(box.rows, down * apart[0]), cols=shifted(box.cols, across * apart[1]))
                    for down, across in product(range(row), range(col))
                ])  # fmt: skip
            if tensor.name not in self._stored:
                order, sizes = axes_of(HWCN), (self.hardware.vector_memory.element_bytes, burst)
                padded = tensor.padded or tensor.shape
                self._stored[tensor.name] = Stored(0, tensor.shape, padded, order, order, *sizes)
            runs = map(self._stored[tensor.name].runs, strips)
            self._known[key] = Moved(sum([each.moved(burst) for each in runs if each]), strips)
        return self._known[key]


# ---- Programs whose tensors lie in HBM as `hbm.layout` says, whichever lowering wrote them


def laid_out(lowered: Explained, hardware: Hardware) -> Explained:
    """The Program `in_layout`, and people are told of it. Raises CapacityError where the DRAM has too little room."""
    _check_room(lowered[0], hardware)
    program, told = in_layout(lowered[0], hardware), lowered[1]
    if hardware.hbm.layout == Layouts():
        others = ", the filter as it is read" if any(each.name == "filter" for each in program.tensors) else ""
        words = f"feature maps lie {HWCN} in HBM{others}"
    else:
        words = f"in HBM {'; '.join(_words(program, TransferRuns(program, hardware)))}"
    return program, replace(told, aspects={**told.aspects, "layout": words})


def in_layout(program: Program, hardware: Hardware) -> Program:
    """The steps of a Program, each transfer with the bytes that its runs take.

    Lowerings count those of words as they are streamed: where nothing else is asked for, it is what they wrote.
    """
    if hardware.hbm.layout == Layouts():
        return program
    moves = TransferRuns(program, hardware)
    steps = (
        replace(each, hbm_bytes=moves.bytes(each)) if isinstance(each, Transfer) else each for each in program.steps
    )
    return replace(program, steps=tuple(steps))


def _check_room(program: Program, hardware: Hardware) -> None:
    """Raise where all tensors together have no room in the DRAM: addresses beyond it would begin again at 0."""
    device = hardware.hbm.dram
    if device is None:
        return
    # No less than what tensors take, quickly: their elements, and what is moved of what lies as it is read.
    elements = sum(prod(each.padded or each.shape) for each in program.tensors)
    moved = sum(step.hbm_bytes for step in program.steps if isinstance(step, Transfer))
    wide = max([hardware.vector_memory.element_bytes, *(each.number_bytes or 0 for each in program.tensors)])
    if elements * wide + moved + len(program.tensors) * hardware.hbm.alignment_bytes <= device.capacity_bytes:
        return
    if (size := TransferRuns(program, hardware).size) > device.capacity_bytes:
        raise CapacityError(
            f"its tensors take {size:,} B in HBM, and {device.name} has {device.capacity_bytes:,} B; "
            "give hbm.device more rows or channels, or choose a smaller batch"
        )


def _words(program: Program, moves: TransferRuns) -> Iterator[str]:
    """Which way each feature map and the filter lie, and how many bytes are moved for each that is wanted."""
    for tensor in (each for each in program.tensors if each.number_bytes is None):
        steps = [step for step in program.steps if isinstance(step, Transfer) and step.tensor.name == tensor.name]
        moved, wanted = sum(step.hbm_bytes for step in steps), sum(map(moves.wanted, steps))
        order = "as it is read" if moves.order(tensor.name) == AS_READ else moves.order(tensor.name)
        yield f"{tensor.name} lies {order}, {moved / max(wanted, 1):.3g} bytes moved for each that is wanted"
