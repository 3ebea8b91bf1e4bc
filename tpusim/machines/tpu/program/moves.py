"""Where the tensors of a Program lie in HBM, and which runs of addresses each of its transfers moves.

For whoever times memory by addresses: `Moves(program, hardware).bursts(step)` are the addresses of the bursts of one
transfer, in order. Nothing is worked out before it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.regions import regions_of, regions_of_part
from tpusim.machines.tpu.program.tensor import Along, Tensor
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.layout import Region, inside, whole_bursts
from tpusim.memory.orders import AS_READ, AXES, FILTER, FILTERS, axes_of
from tpusim.memory.runs import Addresses, Bursts, Runs
from tpusim.memory.stored import Stored

_NEEDED = tuple(map(AXES.index, "HWNC"))
"""A word is an image, or some, of a pixel of a row; lanes are channels, and go along side by side."""

_Held = tuple[tuple[Along, ...], tuple[Along, ...]]
"""What lanes and items of a part are."""


class Moves:
    """The runs of every transfer of a Program on a machine.

    Tensors lie one after another from address 0 on, in the Program's order, each at a multiple of `hbm.alignment` and
    as `hbm.layout` says. A transfer's runs come region by region; of a region, rows outside, then columns, images and
    channels, as far as these are not neighbours in HBM. The filter, where it lies as it is read, has the parts of its
    fills one after another, column fold by column fold, each element as often as it is in parts that differ.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware = program, hardware
        self._bursts = Bursts(hardware.hbm.burst_bytes)
        self._known: dict[tuple[str, Region], Runs | None] = {}
        self._inside: dict[tuple[str, Region], int] = {}

    @cached_property
    def bases(self) -> dict[str, int]:
        """The first address of each tensor, by its name."""
        return {each.name: end for each, end in zip(self.program.tensors, self._ends, strict=False)}

    @property
    def size(self) -> int:
        """Bytes from address 0 to the end of the last tensor."""
        return self._ends[-1]

    @cached_property
    def _ends(self) -> list[int]:
        """Where the first tensor begins, and each ends."""
        sizes = (
            whole_bursts(self._bytes(each), self.hardware.hbm.alignment_bytes) if each.scratch is None else 0
            for each in self.program.tensors
        )
        return [*accumulate(sizes, initial=0)]

    def order(self, name: str) -> str:
        """The way of a tensor, by the name that files give it."""
        return self.hardware.hbm.layout.of(name)

    def runs(self, step: Transfer) -> list[Runs]:
        """The runs of a transfer, in order; none where all of it is padding."""
        if self._as_read(step.tensor):
            return self._pieces(step)
        found = (self._region(step.tensor, region) for region in regions_of(step))
        return [each for each in found if each]

    def bursts(self, step: Transfer) -> Addresses:
        """The addresses of its bursts, in order."""
        return self._bursts.of(self.runs(step))

    def bytes(self, step: Transfer) -> int:
        """Bytes that the pipe moves for it: each run in whole bursts, wherever it begins."""
        return sum(each.moved(self.hardware.hbm.burst_bytes) for each in self.runs(step))

    def wanted(self, step: Transfer) -> int:
        """Bytes of the elements that it moves, neither padding nor what is read through."""
        return sum(self._elements(step.tensor, each) for each in regions_of(step)) * self._element_bytes(step.tensor)

    # ---- tensors that have axes

    def _region(self, tensor: Tensor, region: Region) -> Runs | None:
        key = tensor.name, region
        if key not in self._known:
            self._known[key] = self._stored[tensor.name].runs(region)
        return self._known[key]

    def _elements(self, tensor: Tensor, region: Region) -> int:
        """Those of a region that there are."""
        key = tensor.name, region
        if key not in self._inside:
            parts = (inside(part, 0, extent) for part, extent in zip(region, tensor.shape, strict=True))
            self._inside[key] = prod(map(len, parts))
        return self._inside[key]

    @cached_property
    def _stored(self) -> dict[str, Stored]:
        return {each.name: self._lying(each, self.bases[each.name]) for each in self.program.tensors}

    def _lying(self, tensor: Tensor, base: int) -> Stored:
        """How a tensor lies from `base` on."""
        axes, burst = tuple(range(len(tensor.shape))), self.hardware.hbm.burst_bytes
        order, needed = axes, axes
        if tensor.role == FILTER:
            order = FILTERS[self.order(FILTER)] or axes
        elif len(axes) == len(AXES):
            order, needed = axes_of(self.order(tensor.role)), _NEEDED
        padded = tensor.padded or tensor.shape
        return Stored(base, tensor.shape, padded, order, needed, self._element_bytes(tensor), burst)

    def _element_bytes(self, tensor: Tensor) -> int:
        return tensor.number_bytes or self.hardware.vector_memory.element_bytes

    # ---- those that lie as they are read

    def _as_read(self, tensor: Tensor) -> bool:
        return self.order(tensor.role) == AS_READ

    def _bytes(self, tensor: Tensor) -> int:
        """What a tensor takes."""
        if not self._as_read(tensor):
            return self._lying(tensor, 0).bytes
        return sum(self._size(tensor, held) for held in self._offsets[tensor.name]) * self._element_bytes(tensor)

    @cached_property
    def _offsets(self) -> dict[str, dict[_Held, int]]:
        """By tensor, the elements ahead of each part: those of the same lanes together, as they are first read."""
        found: dict[Tensor, dict[tuple[Along, ...], dict[_Held, None]]] = {}
        for step in self.program.steps:
            if isinstance(step, Transfer) and self._as_read(step.tensor):
                of_lanes = found.setdefault(step.tensor, {})
                for part in step.parts:
                    of_lanes.setdefault(part.lane, {})[part.lane, part.items] = None
        return {tensor.name: self._one_after_another(tensor, of_lanes) for tensor, of_lanes in found.items()}

    def _one_after_another(self, tensor: Tensor, of_lanes: Mapping[Any, Iterable[_Held]]) -> dict[_Held, int]:
        """The elements ahead of each part."""
        parts = [held for each in of_lanes.values() for held in each]
        return dict(zip(parts, accumulate((self._size(tensor, held) for held in parts), initial=0), strict=False))

    def _size(self, tensor: Tensor, held: _Held) -> int:
        """Elements of a part that there are."""
        return sum(self._elements(tensor, each) for each in regions_of_part(*held, len(tensor.shape)))

    def _pieces(self, step: Transfer) -> list[Runs]:
        """A run for all parts that stand one after another."""
        offsets, size, base = self._offsets[step.tensor.name], self._element_bytes(step.tensor), self.bases
        runs: list[Runs] = []
        for part in step.parts:
            held = part.lane, part.items
            start, taken = base[step.tensor.name] + offsets[held] * size, self._size(step.tensor, held) * size
            if runs and runs[-1].base + runs[-1].size == start:
                runs[-1] = runs[-1]._replace(size=runs[-1].size + taken)
            elif taken:
                runs.append(Runs(start, (), taken))
        return runs
