"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, DeadlockError, PortConflict
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.steps import Program
from tpusim.network.workload import Conv2d, Gemm
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
def failures_named(layer: Conv2d | Gemm) -> Iterator[None]:
    """A failure of the machine in here says which layer it is about."""
    try:
        yield
    except (CheckFailed, DeadlockError, PortConflict) as error:
        raise type(error)(f"layer {layer.name}: {error}") from None


def check_layer(layer: Conv2d | Gemm, batch: int, program: Program, hardware: Hardware, seed: int) -> Verdict:
    """Compare all outputs, for equality.

    Raises:
        CheckFailed: when the Program addresses words or lanes that do not exist; names the layer.
    """
    ifmap, filter_ = reference.operands(layer, batch, seed)
    with failures_named(layer):
        actual = datapath.run(program, hardware, ifmap, filter_)
    return compare(layer, actual, reference.compute(layer, ifmap, filter_))


def compare(layer: Conv2d | Gemm, actual: Tensor, expected: Tensor) -> Verdict:
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
