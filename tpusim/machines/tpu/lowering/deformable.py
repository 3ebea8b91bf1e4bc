"""Deformable convolutions: the vector unit gathers samples into words of their own, which the array multiplies.

The images of a word have offsets of their own, so that its elements come from as many words, four each: the elements
around a sample. Their addresses, and how near they are, are worked out beforehand, as the pointers of `indirect` are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.sampled_units import Sampled
from tpusim.machines.tpu.lowering.sampling import Sampling, most_kinds, sampling_of
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.program import Explanation, Lowered, Program
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.network.ops import ArrayOp, DeformConv2d


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        UnsuitableError: when it is no deformable convolution.
        CapacityError: when no tiling fits the vector memories, or a word holds no pointer.
    """
    if not isinstance(layer, DeformConv2d):
        says = f"this lowering is for deform_conv2d, not for {layer.op}"
        raise UnsuitableError(f"{says}; name it as the own lowering: of such layers")
    sampling = sampling_of(layer, batch, hardware)

    def finish(program: Program) -> Lowered:
        return program, _explained(explanation_of(sampling.plan, layer), sampling, program)

    return one_draft(partial(Sampled, sampling), finish)


# ---- in words


def _explained(told: Explanation, sampling: Sampling, program: Program) -> Explanation:
    """The words of its product, and two aspects more."""
    plan, cut = sampling.plan, sampling.cut
    (rows, cols), groups = cut.layer.kernel, plan.shape.groups
    taps = f"{rows} x {cols} = {rows * cols}, each sampled by itself, over {counted(plan.shape.channels, 'channel')}"
    taps += f" in each of {groups} groups" if groups > 1 else ""
    taps += f"; {cut.stacked}" if cut.stacked else ""
    words = SIZE.format(sampling.words * sampling.plan.hardware.word_bytes)
    memory = f"{told.aspects['memory']}; beside them {words} of bands of the ifmap and tables"
    aspects = {"samples": _samples(sampling, program), "tables": _tables(sampling, program)}
    return replace(told, aspects={**told.aspects, "taps": taps, "memory": memory, **aspects})


def _samples(sampling: Sampling, program: Program) -> str:
    """What a word of samples takes of the vector unit, and how often they are gathered."""
    plan = sampling.plan
    step = program.vectors[0]
    beat = step.beat(plan.word_fill, plan.hardware)
    gathered = sum(each.words for each in program.vectors)
    layer = sampling.cut.layer
    once = plan.shape.groups * plan.cut.folds * plan.cut.groups * prod((layer.out_height, layer.out_width))
    times = gathered / (once * sampling.samples.words)
    again = "once" if times < 1.01 else f"{times:.3g} times: not all column folds are done while they are on chip"
    return (
        f"a word takes {beat.period} cycles, for {step.reads} reads and {counted(len(step.operands) - 1, 'operation')} "
        f"an element: {plan.word_fill} x 4 elements, how near each is, and pointers; gathered {again}"
    )


def _tables(sampling: Sampling, program: Program) -> str:
    """What the tables take of HBM."""
    names = {each.tensor for each in program.constants}
    moved = sum(step.hbm_bytes for step in program.steps if isinstance(step, Fill) and step.tensor.name in names)
    size, kinds = sampling.pointer_bytes, most_kinds(sampling.cut)
    beside = f", {kinds} side by side" if kinds > 1 else ""
    more = 100 * moved / (program.use.hbm_read_bytes - moved)
    return (
        f"pointers of {size} B, one for each element and corner{beside}, and the four weights of each; "
        f"{SIZE.format(moved)} from HBM, {more:.3g} % more than without; worked out before the layer begins"
    )


DEFORMABLE = Lowering(
    "deformable",
    "deformable convolutions: the vector unit gathers samples by address tables, the array multiplies",
    ways,
    partial=True,
)
