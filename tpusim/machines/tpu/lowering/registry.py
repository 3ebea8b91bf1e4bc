"""Every lowering by its name, for `--lowering`. A new lowering is a module and a line here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpusim.base.errors import CapacityError, Problem, UnsuitableError
from tpusim.base.imports import Registry

if TYPE_CHECKING:
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.lowering.drafts import Draft, Lowering
    from tpusim.machines.tpu.program.program import ExplainedProgram, StepCounts
    from tpusim.network.ops.op import Op


LOWERINGS: Registry[Lowering] = Registry("tpusim.machines.tpu", {
    "channel_first": "lowering.convolution.CHANNEL_FIRST",
    "channel_last": "lowering.convolution.CHANNEL_LAST",
    "explicit": "lowering.explicit.EXPLICIT",
    "implicit_gemm": "lowering.convolution.IMPLICIT_GEMM",
    "indirect": "lowering.indirect.INDIRECT",
    "block_diagonal": "lowering.convolution.BLOCK_DIAGONAL",
    "vector": "lowering.vector.VECTOR",
    "vector_ops": "lowering.vector_ops.VECTOR_OPS",
    "vector_rows": "lowering.vector_rows.VECTOR_ROWS",
    "vector_channels": "lowering.vector_channels.VECTOR_CHANNELS",
    "flash_attention": "lowering.flash_attention.FLASH_ATTENTION",
    "winograd_2": "tiles.winograd.WINOGRAD_2",
    "winograd_4": "tiles.winograd.WINOGRAD_4",
    "fft": "tiles.fft.FFT",
    "stride_phases": "lowering.transposed.STRIDE_PHASES",
    "zero_insertion": "lowering.transposed.ZERO_INSERTION",
    "deformable": "lowering.deformable.DEFORMABLE",
})  # fmt: skip
USUAL = next(iter(LOWERINGS))
"""The lowering of a run that names none: the first."""
_INSTEAD = {
    **dict.fromkeys(("conv_transpose2d", "conv2d_input_gradient"), "stride_phases"),
    "deform_conv2d": "deformable",
}
"""Lowerings that the name of the usual one means for some ops."""
_RIVALS = "block_diagonal", "vector"
"""Lowerings that a run that names none compares with it, for layers of several groups."""


def meant(layer: Op, asked: str) -> str:
    """The lowering that a name means for a layer: ops that only one lowering can do always take that one."""
    if layer.unit != "array" or layer.whole_rows:
        return next((name for name, each in LOWERINGS.items() if each.takes(layer)), asked)
    return _INSTEAD.get(layer.core.op, asked) if asked == USUAL else asked


def usual_for(layer: Op, batch: int, hardware: Hardware) -> str:
    """The lowering of a layer for which none is named.

    It is the usual one. A convolution of several groups would take a pass for each group by it, so there the rival with
    the lowest estimate is taken, and the first of equals.
    """
    if getattr(layer.core, "groups", 1) == 1 or meant(layer, USUAL) != USUAL:
        return USUAL
    cycles: dict[str, float] = {}
    for name in filter(LOWERINGS.__contains__, (USUAL, *_RIVALS)):
        # If no lowering takes the layer, the error of the usual one is raised later.
        with suppress(CapacityError):
            cycles[name] = drafts_of(layer, batch, hardware, name)[0].estimate()
    return min(cycles, key=cycles.__getitem__, default=USUAL)


_MOST_PLANNED = 64
_planned: dict[Hashable, tuple[Lowering, Sequence[Draft]]] = {}
"""Lowering and drafts of layers that are planned and not lowered yet: whoever lowers one need not search it again."""


def drafts_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Sequence[Draft]:
    """Drafts of a layer by the lowering of that name: one, or several that a simulation should choose from.

    Fused ops ride on the layer's results, and tensors are stored as the machine says.

    Raises:
        CapacityError: when nothing fits the memories, or the lowering is not one for such a machine; names the layer.
            So do the drafts.
    """
    # Handed over, as what the first to lower them works out should last no longer than its Program.
    by, drafts = _planned.pop((layer, batch, hardware, lowering), (None, ()))
    return drafts if by is LOWERINGS[lowering] else _drafts_of(layer, batch, hardware, lowering)


def _drafts_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Sequence[Draft]:
    """Drafts of the op itself, each then with what is fused to it, stored as the machine says, and told as a whole."""
    with _named(layer):
        found = LOWERINGS[lowering]
        by = _suited(layer, batch, found)
        drafts = [_stored(each, layer, hardware) for each in _with_fused(layer, batch, hardware, found)]
        if not (names := by.unused(hardware)):
            return drafts
        return [each.telling("unused", f"of mapping, by {by.name}: {', '.join(names)}") for each in drafts]


def _suited(layer: Op, batch: int, found: Lowering) -> Lowering:
    """The lowering itself, or the one that it leaves such layers to. Raises UnsuitableError if it takes none."""
    # Imported here, because help pages need none of it.
    from tpusim.machines.tpu.lowering.on_the_way import on_the_way

    if layer.unit == found.unit and not found.takes(layer):
        own = meant(layer, USUAL)
        raise UnsuitableError(f"{layer.op} is lowered by {own}, not by {found.name}; name that, or none")
    by = found.left.to if found.left and found.leaves(layer, batch) else found
    if on_the_way(layer) and "way" not in by.carries:
        says = f"{found.name} works on nothing on its way"
        raise UnsuitableError(f"{says}; name another lowering, or leave it out of the fusion")
    return by


def _with_fused(layer: Op, batch: int, hardware: Hardware, found: Lowering) -> Sequence[Draft]:
    """Drafts with the ops that are fused to the layer.

    Blocks are chosen without the words that stand beside them for work on the way. So where these are too many, blocks
    are chosen again with less room.
    """
    from tpusim.machines.tpu.lowering.on_the_way import beyond, no_room, on_the_way, slowed, worked
    from tpusim.machines.tpu.lowering.riding import riding, spared
    from tpusim.network.ops.fused import Fused

    def fused(draft: Draft) -> Draft:
        if not isinstance(layer, Fused):
            return draft
        arranged = hardware.arranged(draft.arrangement) if draft.arrangement else hardware
        return worked(riding(draft, layer, arranged), layer, batch, arranged)

    room, more, held = slowed(layer, batch, spared(layer, batch, hardware)), 0, hardware.capacity_words
    while True:
        try:
            drafts = [fused(each) for each in found.drafts(layer, batch, room)]
        except CapacityError:
            if not more:
                raise
            raise no_room(more, hardware) from None
        over = max(beyond(each, hardware) for each in drafts) if on_the_way(layer) else 0
        if not over:
            return drafts
        more += over
        # What stands beside blocks shrinks with them.
        left = room.vector_memory.capacity_bytes * held // (held + over)
        room = room.having("vector_memory", capacity_bytes=left)


def _stored(draft: Draft, layer: Op, hardware: Hardware) -> Draft:
    """The draft with its tensors laid out in HBM as the machine says; errors name the layer."""
    from tpusim.machines.tpu.cut.traffic import laid_out

    return replace(
        draft, finish=lambda program: laid_out(draft.finish(program), hardware), around=partial(_named, layer)
    )


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> ExplainedProgram:
    """The Program of the first of `drafts_of`, explained. Raises as `drafts_of`."""
    return drafts_of(layer, batch, hardware, lowering)[0].lower()


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> tuple[StepCounts, int]:
    """Numbers of steps of the longest of `drafts_of`, and the number of drafts. Raises as `drafts_of`."""
    drafts = drafts_of(layer, batch, hardware, lowering)
    # Drafts of the vector unit, which are few, differ in the portions of a unit, too.
    longest = drafts if LOWERINGS[lowering].unit == "vector" else [max(drafts, key=lambda draft: draft.blocks)]
    planned = max((each.planned for each in longest), key=lambda counts: counts.passes + counts.transfers)
    while len(_planned) >= _MOST_PLANNED:
        del _planned[next(iter(_planned))]
    _planned[layer, batch, hardware, lowering] = LOWERINGS[lowering], drafts
    return planned, len(drafts)


def least_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> float:
    """Cycles that every run by this lowering takes at least; 0 if it cannot tell. Raises as `drafts_of`."""
    with _named(layer):
        least = LOWERINGS[lowering].least
        return least(layer.core, batch, hardware) if least else 0.0


@contextmanager
def _named(layer: Op) -> Iterator[None]:
    try:
        yield
    except CapacityError as error:
        problems = (Problem(str(each), f"layer {layer.name}") for each in error.problems)
        raise type(error)(problems) from None
