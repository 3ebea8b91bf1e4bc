"""Explicit im2col (paper section II-B): the lowered matrix is written to HBM, and then multiplied.

The product is channel-first's own of a 1x1 convolution, whose ifmap is the lowered matrix. Where the ifmap is that
already, as for a matrix product, nothing is transformed. The lowered matrix may also stay on chip, block by block.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial

from tpusim.base.errors import CapacityError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.candidates import least_words
from tpusim.machines.tpu.lowering.convolution import Convolution, convolved, is_a_product, tilings_by
from tpusim.machines.tpu.lowering.dense import OnChip
from tpusim.machines.tpu.lowering.drafts import Draft, Left, Lowering
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import TapGroups
from tpusim.machines.tpu.lowering.search import Ranked
from tpusim.machines.tpu.lowering.tiling import too_small
from tpusim.machines.tpu.lowering.transformation import (
    LEAST_WORDS,
    RollingWindow,
    Transformation,
    again_of,
    window_of,
)
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.explanation import Explanation, Lowered
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.machines.tpu.program.transfers import Fill, Spill, Transfer
from tpusim.machines.tpu.schedule.units import Need
from tpusim.network.ops import ArrayOp, Conv2d

LOWERED = "lowered"
"""The lowered matrix [k, row, col, image] among the tensors of a Program; k as in the filter, group after group."""

SHARE = 4
"""Beside the product the transformation gets one word in so many, if that is enough: it needs few rows at once."""


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """Blocks of the product; or of the lowered matrix on chip.

    Raises:
        CapacityError: when window and product do not fit the vector memories.
    """
    if hardware.mapping.transformation == "on_chip":
        return convolved(OnChip, layer, batch, hardware)

    def draft(work: Transformation, rank: Ranked) -> Draft:
        def finish(program: Program) -> Lowered:
            return program, _explained(work, program, layer)

        return Draft(partial(_Explicit, work), finish, work.plan.tiling.blocks, rank.least, rank.estimate)

    return [draft(work, rank) for work, rank in _works(*layer.convolution(batch), hardware)]


def _works(conv: Conv2d, images: int, hardware: Hardware) -> list[tuple[Transformation, Ranked]]:
    """The transformation beside the product, or before it in the same words; of each tiling of the product."""
    # What is transformed may lie in any way, and the lowered matrix lies as it is read.
    hardware = hardware.with_entry("ready")
    product = shape_of(conv.product, images, hardware)
    shape = shape_of(conv, images, hardware).in_strips_of(product)
    cut, before = TapGroups(product, hardware), hardware.mapping.transformation == "before"
    if before:
        ranks, window = tilings_by(TapGroups, product, hardware), window_of(shape, hardware, hardware.capacity_words)
        assert window is not None
    else:
        ranks, window = _side_by_side(shape, product, hardware)
    plans = [(Plan(product, hardware, rank.tiling, cut, LOWERED), rank) for rank in ranks]
    return [(Transformation(shape, plan, window), rank) for plan, rank in plans]


def _side_by_side(shape: ConvShape, product: ConvShape, hardware: Hardware) -> tuple[tuple[Ranked, ...], RollingWindow]:
    """The window in its share of the words, if the product fits the others; else the smallest there is."""
    for room in (hardware.capacity_words // SHARE, LEAST_WORDS):
        window = window_of(shape, hardware, room)
        if window is not None:
            memory = hardware.vector_memory
            left = memory.capacity_bytes - window.words * hardware.word_bytes
            memory = memory.model_copy(update={"capacity_bytes": left})
            try:
                return tilings_by(TapGroups, product, hardware.model_copy(update={"vector_memory": memory})), window
            except CapacityError:
                continue
    raise too_small(LEAST_WORDS + least_words(product, hardware, TapGroups(product, hardware)), hardware)


class _Explicit(Convolution):
    """The product, each of whose fills needs the units of the transformation that write what it reads."""

    def __init__(self, work: Transformation) -> None:
        super().__init__(work.plan)
        self.work, self.strands, self.intermediates = work, {LOWERED: work}, work.plan.ifmap.size
        self.before = work.plan.hardware.mapping.transformation == "before"

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.work.ifmap, *super().tensors

    def counted(self) -> None:
        return None

    def needs(self, filled: Patch) -> tuple[Need, ...]:
        return (Need(LOWERED, self.work.last_of(filled)),)


# ---- in words


def _explained(work: Transformation, program: Program, layer: ArrayOp) -> Explanation:
    """The product's explanation, and how its ifmap comes about."""
    rows = counted(work.plan.ifmap.shape[0] // work.shape.groups, "row") + " of the lowered matrix"
    told = explanation_of(work.plan, layer, rows)
    window = SIZE.format(work.window.words * work.plan.hardware.word_bytes)
    before = work.plan.hardware.mapping.transformation == "before"
    memory = f"{told.aspects['memory']}; {window} of window for the ifmap{' in the same words' if before else ''}"
    row, col, channels = work.shape.row, work.shape.col, work.shape.channels
    copies = f"{row.kernel} x {col.kernel} = {work.shape.taps} copies of {counted(channels, 'channel')}"
    groups = f" in each of {work.shape.groups} groups" if work.shape.groups > 1 else ""
    own = {"taps": f"{copies}: {rows}{groups}", "window": _window(work, before), "lowered": _read(work, program)}
    choices = {f"window_{name}": getattr(work.window, name) for name in ("rows", "cols", "groups", "taps", "depth")}
    aspects = {**own, **{name: text for name, text in told.aspects.items() if name not in own}, "memory": memory}
    return replace(told, choices={**told.choices, **choices}, aspects=aspects)


def _window(work: Transformation, before: bool) -> str:
    """What the window does, and when."""
    window, shape = work.window, work.shape
    when = f"transformed {'before' if before else 'beside'} the product"
    rolls = f"{window.rows} x {window.cols} of {shape.row.extent} x {shape.col.extent} outputs at a time"
    copies = f", {work.copies} copies at once" if work.copies > 1 else ""
    again = "" if window.taps == shape.taps else f"; the ifmap comes for {window.taps} taps"
    shared = again_of(shape, window)
    halos = f"; columns that parts share come again, {100 * shared:.1f} % more" if shared else ""
    return f"{when}: {rolls}{copies}{again}{halos}"


def _read(work: Transformation, program: Program) -> str:
    """How large it is, and how often it is read."""
    moves = [step for step in program.steps if isinstance(step, Transfer) and step.tensor.name == LOWERED]
    written = sum(step.hbm_bytes for step in moves if isinstance(step, Spill))
    times = sum(step.hbm_bytes for step in moves if isinstance(step, Fill)) / written
    size = f"{work.plan.ifmap.size * work.plan.hardware.vector_memory.element_bytes / 1e6:,.4g} MB"
    if times < 1.01:
        return f"{size} in HBM, written and read once"
    return f"{size} in HBM, written once and read {times:.3g} times: not all column folds are done while it is on chip"


_IGNORED = frozenset({
    "multi_tile", "fetch", "k_order", "row_windows", "transposed_channels", "entry", "block_k", "block.taps",
})  # fmt: skip


def _ignored(hardware: Hardware) -> frozenset[str]:
    on_chip = hardware.mapping.transformation == "on_chip"
    return _IGNORED - {"row_windows", "entry", "block_k", "block.taps"} if on_chip else _IGNORED


EXPLICIT = Lowering(
    "explicit",
    "im2col proper: the lowered matrix is written, to HBM unless told otherwise, and then multiplied",
    ways,
    left=Left(channel_first.CHANNEL_FIRST, is_a_product),
    ignores=_ignored,
)
