"""Values of a network from end to end: on one chip, or on all chips of a mesh, each of which has its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.flow.chip_values import MOST_TOLD, STAY_WITHIN, ChipValues, not_finite
from tpusim.flow.jobs import resolve
from tpusim.flow.numbers import ANY_ORDER, Numbers, numbers_of
from tpusim.flow.shard_values import Shards
from tpusim.machines.family import Machine
from tpusim.network.graph import GivenInput, Graph
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.numerics.element_types import F32, Values, all_finite
from tpusim.reference import Operand

if TYPE_CHECKING:
    from tpusim.network.formats.jax_function import JaxWorkload


class Journey:
    """Values of a graph on their way through it, for one run of a workload's layers in order.

    Of a graph that is the share of each chip of a mesh, every layer runs once for each chip, and chips exchange what
    they have made in between. Layers take turns, from `operands` to `take`, on any thread: a layer may still be checked
    when the next begins.
    """

    def __init__(self, graph: Graph, work: Workload, inputs: Mapping[str, Values], numbers: Numbers) -> None:
        """`inputs` are the graph's inputs for the whole batch of all chips, from `checked` or `drawn`.

        Raises:
            InputError: there are operators or attributes of which no values can be computed, or results of layers that
                are not worked out are read, or layers of the graph are left out.
        """
        self.graph, self.work, self._shards = graph, work, Shards(graph.mesh)
        parts = {name: self._shards.cut(each, graph.places.get(name, ())) for name, each in inputs.items()}
        own = [{name: each[chip] for name, each in parts.items()} for chip in range(self._shards.chips)]
        self._chips = [
            ChipValues(self._shards.graph_of(graph, chip), work, each, numbers) for chip, each in enumerate(own)
        ]
        self._chip = 0
        self._turns = {layer.name: number for number, layer in enumerate(work.layers)}
        self._taken, self._ended, self._news = 0, False, Condition()

    @property
    def chips(self) -> int:
        """The chips that have a share each; `operands` and `take` go from one to the next in each layer."""
        return len(self._chips)

    def operands(self, layer: Op) -> dict[str, Operand]:
        """Operands of a layer of the workload on the next chip, once the layers before it have handed on their outputs.

        Raises:
            InputError: the values before it cannot be computed, or are of other sizes than the layer.
        """
        with self._news:
            # Only the layer whose turn it is may go on: it needs the outputs of all layers before it.
            self._news.wait_for(lambda: self._ended or self._taken == self._turns[layer.name])
        if self._ended:
            raise InputError(Problem("a layer before it has no values", f"layer {layer.name}"))
        if not self._chip:
            self._advance()
        return self._chips[self._chip].operands(layer)

    def numbers_of(self, layer: Op) -> Numbers:
        """The numbers of a layer: the vector unit works with float32, whatever goes into the array."""
        return self._chips[0].numbers_of(layer)

    def take(self, ofmap: Values) -> None:
        """Take the outputs of the layer on that chip, [out_channel, row, col, image]."""
        self._chips[self._chip].take(ofmap)
        self._chip = (self._chip + 1) % len(self._chips)
        if not self._chip:
            with self._news:
                self._taken += 1
                self._news.notify_all()

    @contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """Release the layers behind one that fails in here, which would wait for it for ever."""
        try:
            yield
        except BaseException:
            with self._news:
                self._ended = True
                self._news.notify_all()
            raise

    def outputs(self) -> dict[str, Values]:
        """The graph's outputs for the whole batch of all chips, in their types, once every layer is done."""
        shards, places = self.shards(), self.graph.places
        return {name: self._shards.joined([each[name] for each in shards], places.get(name, ()))
                for name in self.graph.outputs} if len(shards) > 1 else shards[0]  # fmt: skip

    def shards(self) -> list[dict[str, Values]]:
        """What each chip has of the outputs, by the number of the chip."""
        self._advance()
        return [chip.outputs() for chip in self._chips]

    @property
    def reference_only(self) -> dict[str, int]:
        """Number of each operator whose values no layer computes, among those that depend on the inputs."""
        return self._chips[0].reference_only

    def _advance(self) -> None:
        """Bring all chips to the next layer, or to the end, through exchanges."""
        # All chips run the same nodes: where the first has come to an exchange, so have the others.
        arrived = [chip.until_exchange() for chip in self._chips]
        while (node := arrived[0]) and node.exchange:
            operands = [chip.operand_of(node) for chip in self._chips]
            results = [self._shards.exchanged(node.exchange, parts) for parts in zip(*operands, strict=True)]
            for chip, made in zip(self._chips, zip(*results, strict=True), strict=True):
                chip.put(node, [*made])
            arrived = [chip.until_exchange() for chip in self._chips]


def journey(
    work: JaxWorkload, hardware: Machine, *, lowering: str | None = None, dtype: str = F32.name, seed: int = 0
) -> Journey:
    """Send the arguments of a function of JAX from layer to layer: `simulate` takes what this returns.

    Of a function that chips share, arguments and outputs are whole arrays, of which each chip has its part.

    Args:
        work: what `from_jax` returns.
        hardware: the machine of the run.
        lowering: that of the run.
        dtype: that of the run: f32, bf16, f16, f8 or int8.
        seed: of arguments of which only the shape was given.

    Raises:
        InputError: values of some primitive cannot be computed, or the arguments do not fit.

    Examples:
        >>> import jax.numpy as jnp, tpusim
        >>> work = tpusim.from_jax(lambda images, weights: images @ weights, jnp.ones((8, 64)), jnp.ones((64, 32)))
        >>> machine = tpusim.load_hardware("tpu_v2")
        >>> values = tpusim.journey(work, machine)
        >>> tpusim.simulate(work, machine, dtype="f32", journey=values).correct
        True
        >>> [(name, float(value.sum())) for name, value in values.outputs().items()]
        [('output', 16384.0)]
    """
    if getattr(work, "graph", None) is None:
        raise InputError("the workload has no graph of values; give what tpusim.from_jax(...) returns")
    assert work.graph is not None
    given = drawn(work.graph, work.batch, seed) | work.arguments
    jobs = resolve(work, hardware, lowering, dtype=dtype)
    return Journey(work.graph, jobs.work, checked(work.graph, given, work.batch), numbers_of(dtype, ANY_ORDER))


# ---- inputs of a network: checked arrays, or random ones


def checked(graph: Graph, inputs: Mapping[str, Values], batch: int) -> dict[str, Values]:
    """The inputs, complete and in the graph's shapes for `batch` images a chip. Raises InputError with all that is
    wrong.
    """
    problems: list[str] = []
    wanted = _wanted(graph, batch)
    for name, each in wanted.items():
        given = inputs.get(name)
        if given is None:
            there = f"; it has {', '.join(inputs)}" if inputs else ""
            problems.append(f"no array {name!r}, which the model takes as {_text(each.dtype, each.shape)}{there}")
        elif given.shape != each.shape or not np.can_cast(given.dtype, each.dtype, "same_kind"):
            has = _text(given.dtype, given.shape)
            problems.append(f"{name!r} is {has}; the model takes {_text(each.dtype, each.shape)}")
    problems += [f"the model takes no {name!r}; it takes {', '.join(wanted)}" for name in inputs if name not in wanted]
    if problems:
        raise InputError([Problem(each) for each in problems[:MOST_TOLD]])
    with np.errstate(over="ignore"):
        taken = {name: inputs[name].astype(each.dtype, copy=False) for name, each in wanted.items()}
    # An infinity that is given is one; a number that is none may only have become one.
    became = {name: np.where(np.isinf(inputs[name]), 0, each) for name, each in taken.items() if not all_finite(each)}
    if beyond := [Problem(f"{each}; {STAY_WITHIN}") for each in not_finite(became)]:
        raise InputError(beyond[:MOST_TOLD])
    return taken


def wanted_of(given: GivenInput, parts: int) -> GivenInput:
    """An input for several times as many images."""
    if parts == 1 or not given.shape:
        return given
    first, *rest = given.shape
    return GivenInput(given.dtype, (first * parts, *rest))


def _wanted(graph: Graph, batch: int) -> dict[str, GivenInput]:
    """The inputs of all chips together, for `batch` images a chip."""
    found = {name: wanted_of(each, batch // graph.images) for name, each in graph.inputs.items()}
    whole = Shards(graph.mesh).whole
    return {name: GivenInput(each.dtype, whole(each.shape, graph.places.get(name, ()))) for name, each in found.items()}


def drawn(graph: Graph, batch: int, seed: int) -> dict[str, Values]:
    """Random inputs: reals of mean 0 and deviation 1, or, for whole numbers, zeros and ones."""
    random = np.random.default_rng(seed)
    made: dict[str, Values] = {}
    for name, wanted in _wanted(graph, batch).items():
        real = np.issubdtype(wanted.dtype, np.floating)
        numbers = random.standard_normal(wanted.shape) if real else random.integers(0, 2, wanted.shape)
        made[name] = np.asarray(numbers).astype(wanted.dtype)
    return made


def listed(arrays: Mapping[str, Values]) -> str:
    """Arrays in words, such as "data_0 float32[1, 3, 224, 224]"."""
    return ", ".join(f"{name} {_text(each.dtype, each.shape)}" for name, each in arrays.items())


def _text(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
