"""What is asked of the machine: layers to run one after another, read from YAML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, InstanceOf, PlainValidator, ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.document import Document
from tpusim.input.fields import NAMES, Name, names_of, whole
from tpusim.input.form import Form, validated
from tpusim.input.scalars import name_text, path_of, show, whole_number
from tpusim.input.source import open_document
from tpusim.network.edges import INPUT, Edges, Source, problems_of, read_edges, side_by_side, without
from tpusim.network.entries import EXAMPLE, LOWERING, MOST_LAYERS, Read, count_of, numbered, read_layers
from tpusim.network.formats import is_foreign, read
from tpusim.network.formats.asked import NOTHING, ModelOptions, check_ops
from tpusim.network.ops import OPS, Op
from tpusim.network.ops.offset_file import beside
from tpusim.network.ops.pointwise import Pointwise
from tpusim.network.sizes import Sizes, are_sound, names_in, read_sizes, with_sizes
from tpusim.network.wiring import INPUTS, Wiring, inputs_of, is_graph

MOST_IMAGES = 2**16

_CALL = '[Gemm("fc", m=8, n=1000, k=512)]'
MOST_OPS = 10**9
_WIRING = "wiring"
"""The key of a validation context that holds who reads whom in a file, if it says."""


@dataclass(frozen=True)
class OwnLowering:
    """The lowering that a layer of that name has of its own, whatever a run asks for; `where` its file says so."""

    layer: str
    lowering: str
    where: str | None = field(default=None, compare=False)


Counts: TypeAlias = tuple[tuple[str, int], ...]
"""How often each op of another tool comes, by its name."""


def load_workload(
    name_or_path: str | Path,
    batch: int = 8,
    *,
    dims: Mapping[str, int] | None = None,
    skip_unknown: bool = False,
    ops: str | None = None,
) -> Workload:
    """The workload of a shipped name, a path (YAML, .onnx, a .csv of SCALE-Sim), or "-", for `batch` images.

    `dims` are sizes that a workload file names, or that a model leaves open; with `skip_unknown`, ops that nobody here
    knows are left out of it; so are those that are not the array's where `ops` is "array", or the file says so and it
    is not "all". Raises InputError with every problem of the file.
    """
    images, asked = images_of(batch), ModelOptions(dims or {}, skip_unknown, ops)
    return workload_of(open_workload(name_or_path, asked), images, ops)


def images_of(batch: object) -> int:
    """A sound batch. Raises InputError."""
    try:
        return whole_number(batch, 1, MOST_IMAGES)
    except InputError as error:
        raise InputError(Problem(str(error), "batch")) from None


def open_workload(name_or_path: str | Path, asked: ModelOptions = NOTHING) -> Document:
    """The file behind a workload, as it stands there, or what its format makes of it.

    Raises InputError when it is no YAML mapping, or not of the format that its name promises.
    """
    if is_foreign(name_or_path):
        return read(Path(name_or_path), asked)
    document = with_sizes(open_document(name_or_path, "workloads"), asked.dims)
    layers = beside(document.data.get("layers"), Path(name_or_path).parent)
    return replace(document, data={**document.data, "layers": layers}) if layers else document


def workload_of(document: Document, batch: int, ops: str | None = None) -> Workload:
    """What `document` describes, for `batch` images, of the `ops` that are asked for, else those that it says.

    Raises InputError with every problem of it.
    """
    names = names_in(document, batch)
    context = {NAMES: names, _WIRING: wiring_of(document, batch)}
    file = _FILE.read(document, context, _problems_together(document, names))
    places = (document.place(path_of(("layers", index, LOWERING)))[0] for index in range(len(file.layers)))
    layers, own, edges = in_network_order(file.layers, places)
    known = file.not_timed, file.not_known, file.sizes, edges
    return Workload(file.name, batch, layers, file.source, own, *known).with_ops(ops or file.ops)


def wiring_of(document: Document, batch: int) -> Wiring | None:
    """Who reads whom in a file, before its entries are read; None where it does not say."""
    entries = document.data.get("layers", [])
    if not is_graph(entries):
        return None
    inputs = _input_names(document)
    return Wiring(inputs or (INPUT,), batch, map(_name_of, entries), bool(inputs) and are_sound(document))


def in_network_order(
    read: Iterable[Read], places: Iterable[str | None]
) -> tuple[tuple[Op, ...], tuple[OwnLowering, ...], Edges]:
    """The layers of all entries, the lowerings of those that name one, whose places they come with, and the edges."""
    layers: list[Op] = []
    own: list[OwnLowering] = []
    edges: list[tuple[str, tuple[Source, ...]]] = []
    for (ops, lowering, sources), where in zip(read, places, strict=True):
        layers += ops
        own += [OwnLowering(each.name, lowering, where) for each in ops] if lowering else []
        edges += [(each.name, sources) for each in ops] if sources else []
    return tuple(layers), tuple(own), tuple(edges)


def _name_of(entry: object) -> object:
    return entry.get("name") if isinstance(entry, Mapping) else None


def _layers(entry: object, info: ValidationInfo) -> Read:
    """The layers of an entry of a file, whose problems name it."""
    wiring: Wiring | None = (info.context or {}).get(_WIRING)
    try:
        return read_layers(entry, names_of(info), wiring)
    except InputError as error:
        name = _name_of(entry)
        if wiring:
            wiring.lose(name)
        label = f"layer {show(name)}: " if isinstance(name, str) else ""
        raise InputError([Problem(f"{label}{each.message}", each.where) for each in error.problems]) from None


def _problems_together(document: Document, names: Mapping[str, int]) -> list[Problem]:
    """What is wrong with entries beside one another: names that are taken.

    Raises InputError when there are more layers than anybody meant, before any is made.
    """
    entries = document.data.get("layers")
    known = [(_name_of(entry), count_of(entry, names)) for entry in entries] if isinstance(entries, list) else []
    if sum(count for _, count in known) > MOST_LAYERS:
        raise InputError(document.problem("layers", f"over {MOST_LAYERS:,} layers, counts included; use fewer"))
    called = [
        (index, each)
        for index, (name, count) in enumerate(known)
        for each in ([name] if count == 1 else numbered(str(name), count))
    ]
    inputs = _input_names(document) if is_graph(entries) else ()
    return [document.problem(str(each.where), each.message) for each in _taken_names(called, inputs)]


def _input_names(document: Document) -> tuple[str, ...]:
    """Those of the network's inputs; none where they are wrong, which is told with the file."""
    try:
        return inputs_of(document.data.get(INPUTS))
    except InputError:
        return ()


def _entries(entries: object) -> object:
    if not isinstance(entries, list | tuple) and entries is not None:
        raise InputError(f"{show(entries)} is not a list; start each layer with '- '")
    if not entries:
        raise InputError(f"no layers; write at least one, e.g. - {EXAMPLE}")
    return entries


def _sequence(layers: object) -> object:
    if not isinstance(layers, list | tuple):
        raise InputError(f"{show(layers)} is not a sequence of layers; give a list or a tuple, also of one layer")
    if not layers:
        raise InputError(f"no layers; give at least one, e.g. {_CALL}")
    return layers


def _taken_names(called: Iterable[tuple[int, object]], inputs: Sequence[str] = ()) -> Iterator[Problem]:
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


def _counted(given: object) -> Counts:
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
    in Python also a mapping of names: {"conv2": ["conv1"]}.
    """

    name: Annotated[str, Name()]
    batch: Annotated[int, whole(MOST_IMAGES)]
    layers: Annotated[tuple[InstanceOf[Op], ...], BeforeValidator(_sequence)]
    source: str = ""
    lowerings: Annotated[tuple[InstanceOf[OwnLowering], ...], BeforeValidator(_own)] = ()
    not_timed: Annotated[Counts, PlainValidator(_counted)] = ()
    not_known: Annotated[Counts, PlainValidator(_counted)] = ()
    sizes: Annotated[Sizes, PlainValidator(read_sizes)] = ()
    edges: Annotated[Edges, PlainValidator(read_edges)] = ()

    def __post_init__(self) -> None:
        names = {each.name for each in self.layers}
        problems = [*_taken_names((index, each.name) for index, each in enumerate(self.layers))]
        problems += [_no_layer(each, names) for each in self.lowerings if each.layer not in names]
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

    @property
    def never_timed(self) -> Counts:
        """What of `not_timed` is no layer, whatever is asked for."""
        return tuple(each for each in self.not_timed if each[0] not in OPS)

    def with_layers(self, keep: Callable[[Op], bool]) -> Self:
        """The same of some of the layers, which read what they have read before, and so do those that are left out."""
        layers = tuple(layer for layer in self.layers if keep(layer))
        names = {layer.name for layer in layers}
        own = tuple(each for each in self.lowerings if each.layer in names)
        return replace(self, layers=layers, lowerings=own)

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


def _no_layer(own: OwnLowering, names: Iterable[str]) -> Problem:
    hint = did_you_mean(own.layer, names) or "; name one of its layers"
    return Problem(f"there is no layer {show(own.layer)}{hint}", "lowerings")


def _known_ops(ops: str) -> str:
    check_ops(ops)
    return ops


@validated
class _File:
    """A workload as its file has it, which says nothing of the batch."""

    name: Annotated[str, Name()]
    layers: Annotated[tuple[Annotated[Read, PlainValidator(_layers)], ...], BeforeValidator(_entries)]
    source: str = ""
    not_timed: Annotated[Counts, PlainValidator(_counted)] = ()
    not_known: Annotated[Counts, PlainValidator(_counted)] = ()
    sizes: Annotated[Sizes, PlainValidator(read_sizes)] = ()
    inputs: Annotated[tuple[str, ...], PlainValidator(inputs_of)] = (INPUT,)
    ops: Annotated[str, AfterValidator(_known_ops)] = "all"

    def __post_init__(self) -> None:
        if not any(each.layers for each in self.layers):
            raise InputError(Problem("no layers but entries that take no time; write at least one", "layers"))


_FILE = Form(_File)
