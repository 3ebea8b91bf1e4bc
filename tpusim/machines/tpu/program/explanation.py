"""What people are told about a lowering: it stands beside the Program, and nobody reads the plan behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.program.program import Program
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
