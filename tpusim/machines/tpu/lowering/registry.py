"""Every lowering by its name: what `--lowering` chooses between. A new one is a module and a line here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    "winograd_2": "tiles.winograd.WINOGRAD_2",
    "winograd_4": "tiles.winograd.WINOGRAD_4",
    "fft": "tiles.fft.FFT",
    "stride_phases": "lowering.transposed.STRIDE_PHASES",
    "zero_insertion": "lowering.transposed.ZERO_INSERTION",
    "deformable": "lowering.deformable.DEFORMABLE",
})  # fmt: skip
USUAL = "channel_first"
"""What a run takes unasked."""


def meant(layer: Op, asked: str) -> str:
    """The lowering that a name means for a layer: ops of a unit that has one way to do them are lowered in that way."""
    if layer.unit != "array":
        return next((name for name, each in LOWERINGS.items() if each.takes(layer)), asked)
    return LOWERINGS[asked].instead.get(layer.core.op, asked) if asked in LOWERINGS else asked


def unasked(layer: Op, batch: int, hardware: Hardware) -> str:
    """The lowering of a layer for which nobody names one: the first, but of convolutions of several groups, which take
    a pass for each by that, the one of its rivals whose estimate is the lowest. Of equals the first.
    """
    if getattr(layer.core, "groups", 1) == 1 or meant(layer, USUAL) != USUAL:
        return USUAL
    cycles: dict[str, float] = {}
    for name in filter(LOWERINGS.__contains__, (USUAL, *LOWERINGS[USUAL].rivals)):
        # What refuses a layer is told when nothing else takes it.
        with suppress(CapacityError):
            cycles[name] = drafts_of(layer, batch, hardware, name)[0].estimate()
    return min(cycles, key=cycles.__getitem__, default=USUAL)


def drafts_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Sequence[Draft]:
    """The ways in which the lowering of that name may lower a layer: one, or what a simulation should choose from.

    What is fused to a layer rides on it, and its tensors lie as the machine says.

    Raises:
        CapacityError: when nothing fits the memories, or the lowering is not one for such a machine; names the layer.
            So do the drafts.
    """
    # Here, because help pages need none of what they import.
    from tpusim.machines.tpu.cut.traffic import laid_out
    from tpusim.machines.tpu.lowering.riding import riding, spared
    from tpusim.network.ops.fused import Fused

    found = LOWERINGS[lowering]

    def whole(draft: Draft) -> Draft:
        rides = draft
        if isinstance(layer, Fused):
            own = draft.arrangement
            rides = riding(draft, layer, hardware.arranged(own) if own else hardware)

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
            own = meant(layer, lowering)
            raise UnsuitableError(f"{layer.op} is lowered by {own}, not by {lowering}; name that, or none")
        return [whole(each) for each in found.drafts(layer, batch, spared(layer, batch, hardware))]


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> ExplainedProgram:
    """The first of `drafts_of`, as a Program. Raises as they do."""
    return drafts_of(layer, batch, hardware, lowering)[0].lower()


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> tuple[StepCounts, int]:
    """How many steps the longest of `drafts_of` has, and how many of them there are. Raises as they do."""
    drafts = drafts_of(layer, batch, hardware, lowering)
    return max(drafts, key=lambda draft: draft.blocks).planned, len(drafts)


def least_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> float:
    """Cycles that no run by the lowering of that name can do without; 0 where it cannot tell. Raises as `drafts_of`."""
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
