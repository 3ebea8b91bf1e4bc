"""Closed forms by which other simulators tell cycles, beside those of a run: that of SCALE-Sim, for weights that stay.

SCALE-Sim loads the weights of a fold, streams, and lets the array drain: ceil(K/R) ceil(N/C) (M + 2R + C - 2) - 1
cycles for a product (M, K) x (K, N) on R x C PEs. Without the drain M remain of a fold, and R of a pass, as a fold
comes in several passes where M comes in blocks.

Source: Samajdar et al. 2018, arXiv:1811.02883, section III; the 1 is what SCALE-Sim 3 reports, as it counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.flow.jobs import Jobs
from tpusim.flow.simulation import run
from tpusim.machines.family import Machine
from tpusim.machines.lowered import LayerWatch, unheard
from tpusim.network.ops.array_op import ArrayOp, Conv2d, Gemm
from tpusim.network.ops.op import Op
from tpusim.result.records import Result
from tpusim.result.vocabulary.states import ARRAY_UNIT


class LayerByForm(NamedTuple):
    """Cycles of a layer by the closed form, and here.

    Attributes:
        folds: sets of weights that fill the array.
        passes: passes here, folds times blocks.
        scale_sim_cycles: by the closed form.
        no_drain_cycles: what remains of it where no pass waits for the one before to drain.
        array_cycles: those here in which the array has work, or waits for it.
        cycles: all of them here.
    """

    name: str
    folds: int
    passes: int
    scale_sim_cycles: int
    no_drain_cycles: int
    array_cycles: int
    cycles: int

    @property
    def ratio(self) -> float:
        """Cycles here over those by the closed form."""
        return self.cycles / self.scale_sim_cycles


class ComparedForms(NamedTuple):
    """A run beside the closed form, layer by layer, and the layers of which SCALE-Sim has none; `array` has the rows
    and columns of PEs.
    """

    result: Result
    array: tuple[int, int]
    layers: Sequence[LayerByForm]
    without: Sequence[str]

    @property
    def together(self) -> LayerByForm:
        """All layers that have a closed form."""
        return together(self.layers)


def compare_with_forms(jobs: Jobs, watch: LayerWatch = unheard) -> ComparedForms:
    """Time a network, layer by layer, beside the closed form. Raises InputError for a machine without a systolic array,
    and for a network without a layer that has a closed form.
    """
    array = array_of(jobs.machine)
    if not any(sizes_of(job.layer) for job in jobs.each):
        says = (
            "none of its layers has a closed form: these are convolutions of one group, without dilation, and products"
        )
        raise InputError(Problem(f"{says}; name another network", jobs.work.name))
    result = run(jobs, check=False, watch=watch)
    ops, layers, without = {job.layer.name: job.layer for job in jobs.each}, list[LayerByForm](), list[str]()
    for layer in result.layers:
        op = ops[layer.name]
        if isinstance(op, ArrayOp) and sizes_of(op):
            idle = layer.units[ARRAY_UNIT]["idle"]
            layers.append(layer_by_form(op, jobs.work.batch, layer.passes or 0, layer.cycles, idle, array))
        else:
            without.append(layer.name)
    return ComparedForms(result, array, layers, without)


def array_of(machine: Machine) -> tuple[int, int]:
    """Return the PEs of a machine. Raises InputError where it has no systolic array."""
    array = getattr(machine, "array", None)
    if array is None:
        raise InputError(Problem("it has no systolic array, and closed forms are of one; name a TPU", machine.name))
    return (array.rows, array.cols)


def sizes_of(layer: Op) -> tuple[int, ...]:
    """Return a layer as SCALE-Sim's topology has it: height and width of the map as large as its kernel reaches, rows
    and columns of the kernel, channels, filters and the stride; () if SCALE-Sim has no such layer.

    A product is a convolution whose kernel is a row of the map.
    """
    if isinstance(layer, Gemm) and layer.groups == 1:
        return layer.m, layer.k, 1, layer.k, 1, layer.n, 1
    if not isinstance(layer, Conv2d) or layer.groups > 1 or layer.dilation != (1, 1) or len({*layer.stride}) > 1:
        return ()
    step, (rows, cols) = layer.stride[0], layer.kernel
    height, width = (layer.out_height - 1) * step + rows, (layer.out_width - 1) * step + cols
    return height, width, rows, cols, layer.in_channels, layer.out_channels, step


def layer_by_form(
    layer: ArrayOp, batch: int, passes: int, cycles: int, idle: int, array: tuple[int, int]
) -> LayerByForm:
    """Return the closed form of a layer beside its passes and cycles here, `idle` of which are behind its last pass."""
    channels, *_ = ofmap = layer.tensors(batch).ofmap
    rows, (side, wide) = prod(ofmap) // channels, array
    folds = -(-layer.terms(batch) // side) * -(-channels // wide)
    scale_sim = folds * (rows + 2 * side + wide - 2) - 1
    return LayerByForm(layer.name, folds, passes, scale_sim, folds * rows + passes * side, cycles - idle, cycles)


def together(layers: Iterable[LayerByForm]) -> LayerByForm:
    """Add layers up."""
    names, *columns = zip(*layers, strict=True)
    return LayerByForm(f"{len(names):,} layers", *map(sum, columns))
