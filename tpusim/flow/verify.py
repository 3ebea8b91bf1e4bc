"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, DeadlockError, PortConflict
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.network.workload import Gemm, Layer
from tpusim.reference import oracle as reference
from tpusim.result.records import Mismatch

Tensor = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many outputs were held against the reference, how many differ, and the first that does."""

    checked: int
    mismatched: int
    first: Mismatch | None


@contextmanager
def failures_named(layer: Layer) -> Iterator[None]:
    """A failure of the machine in here says which layer it is about."""
    try:
        yield
    except (CheckFailed, DeadlockError, PortConflict) as error:
        raise type(error)(f"layer {layer.name}: {error}") from None


def operands_of(layer: Layer, batch: int, seed: int) -> dict[str, Tensor]:
    """The operands of a layer, by the names of the tensors in its Program."""
    ifmap, filter_ = reference.operands(layer, batch, seed)
    return {"ifmap": ifmap, "filter": filter_}


def check_layer(layer: Layer, batch: int, program: Program, hardware: Hardware, seed: int) -> Verdict:
    """Compare all outputs, for equality.

    Raises:
        CheckFailed: when the Program addresses words or lanes that do not exist; names the layer.
    """
    operands = operands_of(layer, batch, seed)
    with failures_named(layer):
        actual = datapath.run(program, hardware, operands)["ofmap"]
    return compare(layer, actual, expected(layer, operands))


def expected(layer: Layer, operands: Mapping[str, Tensor]) -> Tensor:
    """The ofmap [out_channel, row, col, image] that the reference computes."""
    return reference.compute(layer, operands["ifmap"], operands["filter"])


def compare(layer: Layer, actual: Tensor, expected: Tensor) -> Verdict:
    """Count the elements that differ; NaN (an output never written) differs from everything."""
    if np.array_equal(actual, expected):
        return Verdict(expected.size, 0, None)
    wrong = actual != expected
    at = np.unravel_index(int(wrong.argmax()), wrong.shape)
    index: tuple[int, ...] = tuple(int(i) for i in at)
    axes: tuple[str, ...] = ("channel", "row", "col", "image")
    if isinstance(layer, Gemm):
        index, axes = (index[3], index[0]), ("m", "n")
    first = Mismatch(index, axes, float(expected[at]), None if np.isnan(actual[at]) else float(actual[at]))
    return Verdict(expected.size, int(np.count_nonzero(wrong)), first)
