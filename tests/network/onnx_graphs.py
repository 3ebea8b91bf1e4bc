"""Random ONNX graphs of one input, some of whose axes are open, and the shapes of their values by ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

CALLED_BATCH = ("N", "n", "B", "b", "bs", "batch", "batch_size", "Batch", "unk_batch")
ANYTHING = ("pictures", "M", "?", "unk__7", "dim_0")
"""Names that say nothing: the first axis is the batch then."""
OTHERS = ("seq", "T", "frames", "points", "N")


class Size(NamedTuple):
    """A size of an axis, for the batch drawn; whether it follows the batch, or another open size."""

    size: int
    follows: bool


Shape = tuple[Size, ...]


class RandomGraph(NamedTuple):
    """A model of one input `x`, the name of its batch, the images drawn, and its other open sizes."""

    model: ModelProto
    name: str
    images: int
    others: dict[str, int]
    x: NDArray[np.float32]

    def fixed(self) -> ModelProto:
        """Return the model with the sizes drawn as its own."""
        model = ModelProto()
        model.CopyFrom(self.model)
        for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, self.x.shape, strict=True):
            dim.dim_value = size
        return model

    def values(self, x: NDArray[np.float32] | None = None) -> dict[str, NDArray[Any]]:
        """Return the values that ONNX's evaluator computes, by name, of the input drawn unless another is given."""
        every = ModelProto()
        every.CopyFrom(self.model)
        del every.graph.output[:]
        names = [name for node in every.graph.node for name in node.output]
        every.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names)
        return dict(zip(names, ReferenceEvaluator(every).run(None, {"x": self.x if x is None else x}), strict=True))


@dataclass
class _Graph:
    """A graph while it is drawn: its nodes, constants, and the shapes of its values."""

    draw: st.DrawFn
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def held(self, array: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)
        return name

    def weights(self, *shape: int) -> str:
        steps = np.arange(int(np.prod(shape)))
        return self.held(((steps % 7) - 3).reshape(shape) / 4, np.float32)

    def add(self, op: str, reads: list[str], shape: Shape | None, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, reads, [name], name=f"{op.lower()}_{name}", **attributes))
        if shape is not None:
            self.shapes[name] = shape
        return name


def _unsqueezed(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) < 5:
        at = graph.number(0, len(shape))
        graph.add("Unsqueeze", [value, graph.held([at])], (*shape[:at], Size(1, False), *shape[at:]))


def _squeezed(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if ones := [axis for axis, each in enumerate(shape) if each == (1, False)]:
        at = graph.draw(st.sampled_from(ones))
        graph.add("Squeeze", [value, graph.held([at])], (*shape[:at], *shape[at + 1 :]))


def _transposed(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    order = graph.draw(st.permutations(range(len(shape))))
    graph.add("Transpose", [value], tuple(shape[axis] for axis in order), perm=order)


def _cut(graph: _Graph, value: str) -> None:
    """Every second or third element of an axis, or all but the first, also of the batch."""
    shape = graph.shapes[value]
    if not shape:
        return
    axis, step, start = graph.number(0, len(shape) - 1), graph.number(1, 3), graph.number(0, 1)
    left = len(range(*slice(start, 10**6, step).indices(shape[axis].size)))
    if left:
        reads = [value, *(graph.held([each]) for each in (start, 10**6, axis, step))]
        graph.add("Slice", reads, (*shape[:axis], shape[axis]._replace(size=left), *shape[axis + 1 :]))


def _merged(graph: _Graph, value: str) -> None:
    """Two neighbouring axes as one, by a constant: zeros for what stays, -1 for what is worked out."""
    shape = graph.shapes[value]
    if len(shape) < 2:
        return
    at = graph.number(0, len(shape) - 2)
    if any(each.follows for each in shape[at + 2 :]):
        return
    one, other = shape[at : at + 2]
    both = Size(one.size * other.size, one.follows or other.follows)
    wanted = [*([0] * at), -1, *(each.size for each in shape[at + 2 :])]
    graph.add("Reshape", [value, graph.held(wanted)], (*shape[:at], both, *shape[at + 2 :]))


def _split(graph: _Graph, value: str) -> None:
    """An axis of a known even size as two; the sizes ahead of it are worked out by the model itself."""
    shape = graph.shapes[value]
    even = [axis for axis, each in enumerate(shape) if each.size % 2 == 0 and not each.follows]
    if not even or len(shape) > 4:
        return
    at = graph.draw(st.sampled_from(even))
    behind = [] if at + 1 == len(shape) else [at + 1]
    whole = graph.add("Shape", [value], None)
    parts = [graph.held([2]), graph.held([shape[at].size // 2])]
    if at:
        parts.insert(0, graph.add("Slice", [whole, *(graph.held([each]) for each in (0, at, 0))], None))
    if behind:
        parts.append(graph.add("Slice", [whole, *(graph.held([each]) for each in (at + 1, 99, 0))], None))
    wanted = graph.add("Concat", parts, None, axis=0)
    made = (*shape[:at], Size(2, False), Size(shape[at].size // 2, False), *shape[at + 1 :])
    graph.add("Reshape", [value, wanted], made)


def _times_weights(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if not shape or shape[-1].follows:
        return
    columns = graph.number(1, 6)
    reads = [value, graph.weights(shape[-1].size, columns)]
    if len(shape) == 2 and graph.draw(st.booleans()):
        graph.add("Gemm", [*reads, graph.weights(columns)], (shape[0], Size(columns, False)))
    else:
        graph.add("MatMul", reads, (*shape[:-1], Size(columns, False)))


def _weights_times(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) > 1 and not shape[-2].follows:
        rows = graph.number(1, 6)
        graph.add("MatMul", [graph.weights(rows, shape[-2].size), value], (*shape[:-2], Size(rows, False), shape[-1]))


def _times_itself(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) > 1:
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        turned = graph.add("Transpose", [value], None, perm=order)
        graph.add("MatMul", [value, turned], (*shape[:-1], shape[-2]))


def _convolved(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) not in (3, 4) or any(each.follows for each in shape[1:]):
        return
    outputs, sides = graph.number(1, 4), shape[2:]
    kernel = [graph.number(1, min(3, each.size)) for each in sides]
    made = tuple(Size(each.size - taps + 1, False) for each, taps in zip(sides, kernel, strict=True))
    weights = graph.weights(outputs, shape[1].size, *kernel)
    graph.add("Conv", [value, weights], (shape[0], Size(outputs, False), *made))


def _pooled(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) not in (3, 4):
        return
    if graph.draw(st.booleans()):
        graph.add("GlobalAveragePool", [value], (*shape[:2], *(Size(1, False) for _ in shape[2:])))
        return
    kernel = [graph.number(1, min(2, each.size)) for each in shape[2:]]
    made = (each._replace(size=each.size - taps + 1) for each, taps in zip(shape[2:], kernel, strict=True))
    graph.add("MaxPool", [value], (*shape[:2], *made), kernel_shape=kernel)


def _activated(graph: _Graph, value: str) -> None:
    op = graph.draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Sqrt"]))
    of = graph.add("Abs", [value], graph.shapes[value]) if op == "Sqrt" else value
    graph.add(op, [of], graph.shapes[value])


def _shifted(graph: _Graph, value: str) -> None:
    """By a constant with elements along some axes of known size, of as many axes or fewer."""
    shape = graph.shapes[value]
    sizes = [each.size if not each.follows and graph.draw(st.booleans()) else 1 for each in shape]
    op = graph.draw(st.sampled_from(["Add", "Sub", "Mul"]))
    fewer = next((at for at, size in enumerate(sizes) if size != 1), len(sizes))
    held = graph.weights(*sizes[graph.number(0, fewer) :])
    graph.add(op, [value, held] if graph.draw(st.booleans()) else [held, value], shape)


def _masked(graph: _Graph, value: str) -> None:
    """By what the network makes of itself along some axes, such as a mask."""
    shape = graph.shapes[value]
    along = [axis for axis in range(len(shape)) if graph.draw(st.booleans())]
    if along:
        mask = graph.add("ReduceMax", [value], None, axes=along, keepdims=1)
        op = graph.draw(st.sampled_from(["Add", "Sub", "Mul"]))
        graph.add(op, [value, mask] if graph.draw(st.booleans()) else [mask, value], shape)


def _paired(graph: _Graph, value: str) -> None:
    """Differences of all pairs along an axis."""
    shape = graph.shapes[value]
    if 0 < len(shape) < 5:
        at = graph.number(0, len(shape) - 1)
        one = graph.add("Unsqueeze", [value, graph.held([at])], None)
        other = graph.add("Unsqueeze", [value, graph.held([at + 1])], None)
        graph.add("Sub", [one, other], (*shape[:at], shape[at], shape[at], *shape[at + 1 :]))


def _reduced(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) < 2:
        return
    axis, kept = graph.number(0, len(shape) - 1), graph.number(0, 1)
    op = graph.draw(st.sampled_from(["ReduceMean", "ReduceMax"]))
    made = (*shape[:axis], *([Size(1, False)] * kept), *shape[axis + 1 :])
    graph.add(op, [value], made, axes=[axis], keepdims=kept)


def _rows(graph: _Graph, value: str) -> None:
    shape = graph.shapes[value]
    if len(shape) < 2:
        return
    if graph.draw(st.booleans()) or shape[-1].follows:
        graph.add("Softmax", [value], shape, axis=graph.number(-len(shape), len(shape) - 1))
    else:
        graph.add("LayerNormalization", [value, graph.weights(shape[-1].size)], shape)


_STEPS: tuple[Callable[[_Graph, str], None], ...] = (
    _unsqueezed, _squeezed, _transposed, _cut, _merged, _split, _times_weights, _weights_times, _times_itself,
    _convolved, _pooled, _activated, _shifted, _masked, _paired, _reduced, _rows,
)  # fmt: skip
_MOST = 3000
"""Most elements of a value: those of pairs of pairs of pairs take long."""


@st.composite
def random_graphs(draw: st.DrawFn, largest: int = 9) -> RandomGraph:
    """Graphs of up to eight steps, each of which reads one of the last values."""
    graph, images = _Graph(draw), draw(st.integers(1, largest))
    rank = draw(st.integers(2, 4))
    sizes = [draw(st.integers(1, 6)) for _ in range(rank)]
    name = draw(st.sampled_from(CALLED_BATCH + ANYTHING))
    at = 0 if name in ANYTHING else draw(st.integers(0, rank - 1))
    dims: list[Any] = [*sizes]
    dims[at], sizes[at] = name, images
    others = dict[str, int]()
    if draw(st.booleans()):
        second = draw(st.sampled_from([axis for axis in range(rank) if axis != at]))
        # An N is a size of its own only beside a plainer name.
        plain = name in CALLED_BATCH[2:]
        called = draw(st.sampled_from(OTHERS if plain else OTHERS[:-1]))
        dims[second], others[called] = called, sizes[second]
    graph.shapes["x"] = tuple(Size(size, not isinstance(dim, int)) for size, dim in zip(sizes, dims, strict=True))
    for _ in range(draw(st.integers(1, 8))):
        recent = [value for value in list(graph.shapes)[-3:] if _elements(graph.shapes[value]) <= _MOST]
        if recent:
            draw(st.sampled_from(_STEPS))(graph, draw(st.sampled_from(recent)))
    graph.add("Relu", [list(graph.shapes)[-1]], graph.shapes[list(graph.shapes)[-1]])
    made = helper.make_graph(
        graph.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(graph.nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, held) for held, array in graph.constants.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = np.random.default_rng(images).integers(-8, 8, sizes).astype(np.float32) / 4
    return RandomGraph(model, name if name != "?" else "x.0", images, others, x)


def _elements(shape: Shape) -> int:
    return int(np.prod([each.size for each in shape]))
