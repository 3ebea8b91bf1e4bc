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
    from tpusim.machines.tpu.program.program import ExplainedProgram, Program, StepCounts
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


def meant(layer: Op, asked: str) -> str:
    """The lowering that a name means for a layer: ops that only one lowering can do always take that one."""
    if layer.unit != "array" or layer.whole_rows:
        return next((name for name, each in LOWERINGS.items() if each.takes(layer)), asked)
    return LOWERINGS[asked].instead.get(layer.core.op, asked) if asked in LOWERINGS else asked


def unasked(layer: Op, batch: int, hardware: Hardware) -> str:
    """The lowering of a layer for which none is named.

    It is the usual one. A convolution of several groups would take a pass for each group by it, so there the rival with
    the lowest estimate is taken, and the first of equals.
    """
    if getattr(layer.core, "groups", 1) == 1 or meant(layer, USUAL) != USUAL:
        return USUAL
    cycles: dict[str, float] = {}
    for name in filter(LOWERINGS.__contains__, (USUAL, *LOWERINGS[USUAL].rivals)):
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
    # Imported here, because help pages need none of it.
    from tpusim.machines.tpu.cut.traffic import laid_out
    from tpusim.machines.tpu.lowering.on_the_way import beyond, no_room, on_the_way, slowed, worked
    from tpusim.machines.tpu.lowering.riding import riding, spared
    from tpusim.network.ops.fused import Fused

    found = LOWERINGS[lowering]

    def whole(draft: Draft) -> Draft:
        rides = draft
        if isinstance(layer, Fused):
            own = draft.arrangement
            arranged = hardware.arranged(own) if own else hardware
            rides = worked(riding(draft, layer, arranged), layer, batch, arranged)

        def finish(program: Program) -> ExplainedProgram:
            program, told = laid_out(rides.finish(program), hardware)
            by = found.left.to if found.left and found.leaves(layer, batch) else found
            if names := by.unused(hardware):
                words = f"of mapping, by {by.name}: {', '.join(names)}"
                told = replace(told, aspects={**told.aspects, "unused": words})
            return program, told

        return replace(rides, finish=finish, around=partial(_named, layer))

    with _named(layer):
        if layer.unit == found.unit and not found.takes(layer):
            own = meant(layer, USUAL)
            raise UnsuitableError(f"{layer.op} is lowered by {own}, not by {lowering}; name that, or none")
        by = found.left.to if found.left and found.leaves(layer, batch) else found
        if on_the_way(layer) and "way" not in by.carries:
            says = f"{found.name} works on nothing on its way"
            raise UnsuitableError(f"{says}; name another lowering, or leave it out of the fusion")
        room, more = slowed(layer, batch, spared(layer, batch, hardware)), 0
        while True:
            try:
                drafts = [whole(each) for each in found.drafts(layer, batch, room)]
            except CapacityError:
                if not more:
                    raise
                raise no_room(more, hardware) from None
            # Blocks are chosen without what stands beside them, so they are chosen again with less room.
            over = max(beyond(each, hardware) for each in drafts) if on_the_way(layer) else 0
            if not over:
                return drafts
            more, held = more + over, hardware.capacity_words
            # What stands beside blocks shrinks with them.
            left = room.vector_memory.capacity_bytes * held // (held + over)
            room = room.having("vector_memory", capacity_bytes=left)


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> ExplainedProgram:
    """The Program of the first of `drafts_of`, explained. Raises as `drafts_of`."""
    return drafts_of(layer, batch, hardware, lowering)[0].lower()


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> tuple[StepCounts, int]:
    """Numbers of steps of the longest of `drafts_of`, and the number of drafts. Raises as `drafts_of`."""
    drafts = drafts_of(layer, batch, hardware, lowering)
    planned = max(drafts, key=lambda draft: draft.blocks).planned
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
