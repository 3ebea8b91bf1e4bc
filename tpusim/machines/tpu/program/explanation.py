"""What people are told about a lowering: it stands beside the Program, and nobody reads the plan behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op
from tpusim.result.records import Blocking


@dataclass(frozen=True)
class Explanation:
    """How a layer was lowered.

    Attributes:
        multi_tile: taps stacked in a pass.
        blocking: how it was cut up, as the result tells it.
        choices: what it chose, by name, for those who compute with it.
        aspects: in words, a sentence an aspect, in the order they are told.
    """

    multi_tile: int
    blocking: Blocking
    choices: Mapping[str, int | str]
    aspects: Mapping[str, str]


class Planned(NamedTuple):
    """How many steps a Program will have, before it is written down: passes, and about so many fills and spills.

    `intermediates` counts the elements of tensors that it writes and reads again.
    """

    passes: int
    transfers: int
    intermediates: int = 0


Lowered: TypeAlias = tuple[Program, Explanation]


class Way(NamedTuple):
    """One way to lower a layer, of those that its lowering leaves to simulation, in the order in which to try them.

    No run of it, nor of those after it, takes fewer cycles than `least`; `estimate` is what the lowering expects of it.
    Both are 0 where there is no choice.
    """

    lower: Callable[[], Lowered]
    least: float = 0.0
    estimate: Callable[[], float] = float


Lowering: TypeAlias = Callable[[Op, int, Hardware], Lowered]
"""From a layer, the batch and the machine; raises CapacityError when nothing fits the vector memories."""
Ways: TypeAlias = Callable[[Op, int, Hardware], Sequence[Way]]
"""The same, with the choice among a few left to the caller; the first is what `Lowering` takes."""
