"""A node of a graph whose layers are being computed."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.flow.carried import BESIDE
from tpusim.flow.network_inputs import STAY_WITHIN, not_finite
from tpusim.flow.node_layers import NodeLayers
from tpusim.flow.numbers import Numbers
from tpusim.flow.parts import Parts, Values
from tpusim.network.graph import Node
from tpusim.network.ops.op import Op
from tpusim.numerics.element_types import F32
from tpusim.reference import Operand

_FAILURES = ArithmeticError, AttributeError, InputError, LookupError, MemoryError, TypeError, ValueError
"""What NumPy and Python raise for operands and attributes that do not fit one another."""


class Underway:
    """A node whose layers are being computed."""

    def __init__(self, node: Node, made: NodeLayers, layers: int) -> None:
        self.node, self._made, self._left = node, made, layers
        self._ofmaps: list[Values] = []
        self._scale = 1.0

    def operands(self, layer: Op, batch: int) -> dict[str, Values]:
        """What its next layer reads. Raises InputError where that has other sizes, or numbers that are not finite."""
        with FailuresOf(self.node):
            given = self._made.operands(len(self._ofmaps), layer, batch)
        wanted, found = layer.sources(batch), {name: each.shape for name, each in given.items()}
        if wanted != found:
            says = f"it reads {found}, where the layer has {wanted}"
            raise InputError(Problem(f"{says}; give the --batch that the model was made for", f"layer {layer.name}"))
        if problems := [Problem(f"{says}; {STAY_WITHIN}", f"layer {layer.name}") for says in not_finite(given)]:
            raise InputError(problems)
        return given

    def rounded(self, given: Mapping[str, Values], numbers: Numbers, most: int) -> dict[str, Operand]:
        """As operands of the type; bytes are so many parts of the largest, and what is added to their sums, which is at
        `most` so much, of both.
        """
        assert numbers.kind is not None
        if not numbers.kind.exact:
            return {name: (F32 if name in BESIDE else numbers.kind).rounded(each) for name, each in given.items()}
        multiplied = {name: each for name, each in given.items() if name not in BESIDE}
        units = {name: float(np.abs(each).max(initial=0.0)) / 127 or 1.0 for name, each in multiplied.items()}
        self._scale = prod(units.values())
        bytes_ = {name: numbers.kind.rounded(each / units[name]) for name, each in multiplied.items()}
        return {**bytes_, **self._whole({name: each for name, each in given.items() if name in BESIDE}, most)}

    def _whole(self, added: Mapping[str, Values], most: int) -> dict[str, Operand]:
        """In the unit of the sums. Raises InputError where all of it together may be more."""
        whole = {name: np.rint(each / self._scale) for name, each in added.items()}
        if sum(np.abs(each).max(initial=0.0) for each in whole.values()) > most:
            says = "what is added to its sums of bytes is so large that they are lost beside it"
            raise InputError(f"{self.node.op} {self.node.name}: {says}; leave sequencer.fusion out")
        return {name: each.astype(np.int32) for name, each in whole.items()}

    def took(self, ofmap: Values) -> bool:
        """Whether that was the last layer of the node."""
        scaled = ofmap if self._scale == 1.0 else ofmap * self._scale
        self._ofmaps.append(scaled.astype(np.float32, copy=False))
        self._left -= 1
        return not self._left

    def results(self) -> Parts:
        """What the node makes, part by part, when its layers are done."""
        with FailuresOf(self.node):
            return self._made.results(self._ofmaps)


class FailuresOf:
    """What fails in here says which node it is about."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, _FAILURES):
            says = " ".join(str(error).split()) or "too little memory"
            raise InputError(f"{self.node.op} {self.node.name}: its values cannot be computed: {says}") from None
