"""A network as a graph: nodes in an order in which each reads what is there by then, and what they read by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]


@dataclass(frozen=True)
class Node:
    """An operator of ONNX, with what it reads and makes, by name; what is left out has none ("").

    Attributes:
        op: the operator.
        name: what people know it by.
        inputs, outputs: the values.
        attributes: numbers, text, lists and arrays.
        layer: the entry of the workload that computes it, perhaps as several layers; "": none does.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    layer: str = ""


@dataclass(frozen=True)
class Given:
    """What is given from outside: its type and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A network with its weights.

    Attributes:
        label: the file that it is from.
        inputs: by name, for `images` images.
        outputs: by name the type of their numbers; None: as it comes.
        constants: the weights, by name.
        images: for how many images at once the graph is. More of them go through it one after another, but together
            through the layers of a machine.
        opset: the version of its operators.
    """

    label: str
    inputs: Mapping[str, Given]
    outputs: Mapping[str, np.dtype[Any] | None]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Values]
    images: int
    opset: int

    def producers(self) -> dict[str, str]:
        """By value the name of the node that makes it, of those that depend on inputs; inputs are their own."""
        made = {name: name for name in self.inputs}
        for node in self.nodes:
            if any(name in made for name in node.inputs):
                made |= dict.fromkeys(node.outputs, node.name)
        return made

    def ops(self) -> Counter[str]:
        """How often each operator comes that no layer computes."""
        return Counter(node.op for node in self.nodes if not node.layer)
