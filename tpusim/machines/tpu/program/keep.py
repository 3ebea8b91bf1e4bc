"""What stays on chip between layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from tpusim.machines.tpu.program.step import Shift, Step
from tpusim.machines.tpu.program.tensor import Part, Tensor


@dataclass(frozen=True, slots=True)
class Keep(Step):
    """Words stay where they are: from now on they are parts of a tensor. It takes no unit and no time.

    Layers behind read them there, and wait for this step as a fill waits for spills. Keeps are over in their order.

    Attributes:
        parts: which elements stand in which words; each of one copy, and without a feed.
    """

    cause = "blocked"
    queue = "keep"

    tensor: Tensor
    parts: tuple[Part, ...]

    @property
    def label(self) -> str:
        return f"{self.tensor.role} keep"

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": sum(part.words for part in self.parts)}

    @property
    def words_read(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        return max(part.first_lanes[0] + part.lanes for part in self.parts)

    def shifted(self, by: Shift) -> Self:
        return replace(Step.shifted(self, by), tensor=self.tensor.of_layer(by.layer))
