"""What is asked of the machine: layers to run one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Self, TypeAlias

from pydantic import BeforeValidator, InstanceOf, PlainValidator

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.form import Name, validated, whole
from tpusim.input.scalars import name_text, path_of, show, whole_number
from tpusim.network.edges import Edges, Source, problems_of, read_edges, side_by_side, without
from tpusim.network.ops import OPS
from tpusim.network.ops.elementwise import Pointwise
from tpusim.network.ops.op import Op
from tpusim.network.sizes import Sizes, read_sizes

MOST_IMAGES = 2**16

_CALL = '[Gemm("fc", m=8, n=1000, k=512)]'
MOST_OPS = 10**9


@dataclass(frozen=True)
class OwnLowering:
    """The lowering that a layer of that name has of its own, whatever a run asks for; `where` its file says so."""

    layer: str
    lowering: str
    where: str | None = field(default=None, compare=False)


Counts: TypeAlias = tuple[tuple[str, int], ...]
"""How often each op of another tool comes, by its name."""


def _sequence(layers: object) -> object:
    if not isinstance(layers, list | tuple):
        raise InputError(f"{show(layers)} is not a sequence of layers; give a list or a tuple, also of one layer")
    if not layers:
        raise InputError(f"no layers; give at least one, e.g. {_CALL}")
    return layers


def taken_names(called: Iterable[tuple[int, object]], inputs: Sequence[str] = ()) -> Iterator[Problem]:
    """Each name that an earlier layer has, with its path in the workload; layers come with the place of their entry."""
    first: dict[str, int] = {}
    for index, name in called:
        if name in inputs:
            yield Problem(f"the name {show(name)} is that of the network's input", path_of(("layers", index, "name")))
        elif isinstance(name, str) and name in first:
            taken = f"the name {show(name)} is taken by layers[{first[name]}]; names must differ"
            yield Problem(taken, path_of(("layers", index, "name")))
        elif isinstance(name, str):
            first[name] = index


def _own(lowerings: object) -> object:
    """By the names of layers, as people write them in Python, or as they are kept."""
    return tuple(OwnLowering(*each) for each in lowerings.items()) if isinstance(lowerings, Mapping) else lowerings


def counts_of(given: object) -> Counts:
    """Ops with how often they come, as files write them, {Relu: 49}, or as they are kept."""
    items = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(items, tuple) or not all(isinstance(each, tuple) and len(each) == 2 for each in items):
        raise InputError(f"{show(given)} is no list of ops; write how often each comes, such as {{Relu: 49}}")
    problems: list[Problem] = []
    counts: list[tuple[str, int]] = []
    for op, count in items:
        try:
            counts.append((name_text(op), whole_number(count, 1, MOST_OPS)))
        except InputError as error:
            problems.append(Problem(str(error), str(op)))
    if problems:
        raise InputError(problems)
    return tuple(counts)


@validated
class Workload:
    """Layers to run one after another on `batch` images; `source` says where the sizes come from.

    `lowerings` are those that layers have of their own; in Python also a mapping of names: {"conv1": "channel_first"}.
    `not_timed` are ops of the network that are no layers and take no time here, such as ("Relu", 49); `not_known`
    those that nobody here knows, which may have been convolutions and products too. `sizes` are those that its file
    names and its layers were worked out from, such as ("seq", 128). `edges` say what layers read, where that is known;
    in Python also a mapping of names: {"conv2": ["conv1"]}. `riders` are, by the layer that carries them, the names of
    those that became part of it. `biases` are the layers to whose results a number for each output channel is added, by
    whoever computes values, unless it rides on them.
    """

    name: Annotated[str, Name()]
    batch: Annotated[int, whole(MOST_IMAGES)]
    layers: Annotated[tuple[InstanceOf[Op], ...], BeforeValidator(_sequence)]
    source: str = ""
    lowerings: Annotated[tuple[InstanceOf[OwnLowering], ...], BeforeValidator(_own)] = ()
    not_timed: Annotated[Counts, PlainValidator(counts_of)] = ()
    not_known: Annotated[Counts, PlainValidator(counts_of)] = ()
    sizes: Annotated[Sizes, PlainValidator(read_sizes)] = ()
    edges: Annotated[Edges, PlainValidator(read_edges)] = ()
    riders: tuple[tuple[str, tuple[str, ...]], ...] = ()
    biases: Annotated[tuple[str, ...], PlainValidator(tuple)] = ()

    def __post_init__(self) -> None:
        names = {each.name for each in self.layers}
        problems = [*taken_names((index, each.name) for index, each in enumerate(self.layers))]
        problems += [_no_layer(each.layer, names, "lowerings") for each in self.lowerings if each.layer not in names]
        problems += [_no_layer(each, names, "biases") for each in self.biases if each not in names]
        problems += problems_of(self.edges, [each.name for each in self.layers])
        if problems:
            raise InputError(problems)

    def sources(self) -> dict[str, tuple[Source, ...]]:
        """By layer what it reads, in the order of its tensors; empty where its file does not say.

        Not all of that need be among `layers`, of which some may have been left out.
        """
        return dict(self.edges)

    def inputs(self) -> dict[str, tuple[str, ...]]:
        """By layer the names of all that it reads: layers, and inputs of the network."""
        return {name: side_by_side(sources).names for name, sources in self.edges}

    def neighbours(self, layer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a layer reads, and the layers that read it; empty where edges are not known."""
        inputs = self.inputs()
        return inputs.get(layer, ()), tuple(name for name, read in inputs.items() if layer in read)

    def carried_by(self, layer: str) -> tuple[str, ...]:
        """The layers that became part of one."""
        return dict(self.riders).get(layer, ())

    @property
    def never_timed(self) -> Counts:
        """What of `not_timed` is no layer, whatever is asked for."""
        return tuple(each for each in self.not_timed if each[0] not in OPS)

    def with_layers(self, keep: Callable[[Op], bool]) -> Self:
        """The same of some of the layers, which read what they have read before, and so do those that are left out."""
        layers = tuple(layer for layer in self.layers if keep(layer))
        names = {layer.name for layer in layers}
        own = tuple(each for each in self.lowerings if each.layer in names)
        biases = tuple(each for each in self.biases if each in names)
        return replace(self, layers=layers, lowerings=own, biases=biases)

    def with_ops(self, ops: str) -> Self:
        """The same; of "array", without the layers of other units, which take no time then and are named so.

        Raises InputError where nothing is left.
        """
        left = Counter(layer.op for layer in self.layers if layer.unit != "array")
        if ops == "all" or not left:
            return self
        if left.total() == len(self.layers):
            raise InputError(f"{self.name} has no layer of the array; give --ops all")
        counts = Counter(dict(self.not_timed)) + left
        left_out = [layer for layer in self.layers if layer.unit != "array"]
        placed = {layer.name for layer in left_out if isinstance(layer, Pointwise)}
        edges = without(self.edges, [layer.name for layer in left_out], placed)
        timed = self.with_layers(lambda layer: layer.unit == "array")
        return replace(timed, edges=edges, not_timed=tuple(counts.items()))


def _no_layer(name: str, names: Iterable[str], where: str) -> Problem:
    hint = did_you_mean(name, names) or "; name one of its layers"
    return Problem(f"there is no layer {show(name)}{hint}", where)
