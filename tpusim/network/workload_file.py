"""A workload as its file has it: YAML, or the document that a format of another tool makes; and YAML text of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import yaml
from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.words import counted
from tpusim.input.document import Document
from tpusim.input.form import NAMES, Choice, Form, Name, Reader, names_of, validated, whole, written
from tpusim.input.scalars import path_of, show, whole_number
from tpusim.input.source import open_document
from tpusim.network.blocks import BLOCK, EntryReader, input_names, repeated, wiring_of
from tpusim.network.entries import EXAMPLE, MOST_LAYERS, Read, count_of, inputs_of, is_graph, name_of, numbered
from tpusim.network.formats import (
    NOTHING,
    OPS,
    ModelOptions,
    RunBatch,
    check_ops,
    is_foreign,
    is_function,
    names_sizes,
    read,
)
from tpusim.network.mesh import (
    MESH,
    MOST_CHIPS,
    OF_BATCH,
    SHARD,
    STAGE,
    Mesh,
    batch_of_a_chip,
    mesh_in,
    mesh_text,
    read_mesh,
    read_shard,
    shard_in,
)
from tpusim.network.ops.array_op import StoredTensor
from tpusim.network.ops.op import BATCH
from tpusim.network.workload import (
    INPUT,
    MOST_IMAGES,
    CollectiveLayer,
    Counts,
    Sizes,
    Training,
    Workload,
    counts_of,
    names_in,
    read_sizes,
    sizes_named,
    taken_names,
    with_sizes,
)

_COUNTS = "a mapping of names to counts"
_READ = "read"
"""The key of a validation context for what reads the entries of a file."""


def load_workload(
    name_or_path: str | Path,
    batch: int | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    phase: str | None = None,
    weights: str | None = None,
    caches: str | None = None,
    mesh: Mapping[str, int] | None = None,
    microbatches: int | None = None,
    skip_unknown: bool = False,
    ops: str | None = None,
    shapes: str | None = None,
) -> Workload:
    """Load the workload of a shipped name, a path, or "-", for `batch` images.

    A path is that of a workload file in YAML, an .onnx model, the config.json of a language model, a .csv of SCALE-Sim,
    or FILE.py:FUNCTION of JAX: that file is imported.

    Args:
        name_or_path: a name that `tpusim list` shows, a path, or "-" for standard input.
        batch: images at a time; unless given, as many as `dims` say, or the model is for, else 8.
        dims: sizes that a workload file names, or that a model leaves open.
        phase: phase that the file names: prefill reads a prompt, decode makes a token behind it.
        weights: how HBM has weights of products: int8 or int4, which are widened on their way; unless given, what the
            file says.
        caches: how HBM has keys and values of caches, likewise.
        mesh: axes along which chips share the network, such as {"data": 2, "tensor": 8}: the workload is one chip's
            share, with what chips exchange (`network/sharding.py`), and `batch` that of all chips.
        microbatches: parts of the batch that go through the stages of a pipeline, which a mesh with `stage` has; unless
            given, as many as part it evenly, up to four a stage.
        skip_unknown: leave ops of a model out that tpusim does not know; otherwise they are refused.
        ops: "array" leaves out all ops but those of the array, "all" none; unless given, what the file says.
        shapes: shapes of the arguments of a function of JAX: "8x224x224x3,1000:i32".

    Raises:
        InputError: with every problem of the file.

    Examples:
        >>> import tpusim
        >>> network = tpusim.load_workload("bert_base", batch=1, dims={"seq": 64}, ops="array")
        >>> len(network.layers), network.sizes
        (336, (('seq', 64),))
        >>> token = tpusim.load_workload("llama3_8b", batch=1, phase="decode", weights="int8")
        >>> dict(token.sizes)["tokens"], token.layers[2].stored
        (1, 'int8')
    """
    if not isinstance(name_or_path, str | Path):
        raise InputError(f"{name_or_path!r:.80} is no workload's name; give one that `tpusim list` shows, or a path")
    images = run_batch(batch)
    asked = ModelOptions(
        dims or {}, skip_unknown, ops, shapes=shapes, phase=phase, weights=weights, caches=caches, batch=images,
        mesh=mesh or {}, microbatches=microbatches,
    )  # fmt: skip
    document = open_workload(name_or_path, asked)
    batch = batch_for(document, images)
    return shared(document, name_or_path, asked, batch)


def shared(document: Document, name_or_path: str | Path, asked: ModelOptions, batch: int) -> Workload:
    """Return the workload of a document, opened so, for a batch, or its training step; where it has a mesh, one chip's
    share with what chips exchange, or the stages of a pipeline, for a microbatch.

    Raises InputError as `workload_of` does, for a layer whose share is not known, and for stages that there cannot be.
    """
    made = _share_of(document, name_or_path, asked, batch)
    if asked.training is None:
        return made
    from tpusim.network.offload import offloaded
    from tpusim.network.training import USUAL

    # What a chip sends to its host is of its share.
    return offloaded(made, asked.training.get("offload", (made.training or USUAL).offload))


def _of_chip(document: Document, asked: ModelOptions, batch: int) -> Workload:
    """Return the workload of a document, or its training step, without what chips exchange."""
    work = workload_of(document, batch, asked.ops or ("all" if asked.training is not None else None))
    if asked.training is None:
        return work
    from tpusim.network.training import USUAL, on_chip_step

    return on_chip_step(work, replace(work.training or USUAL, **asked.training))


def _share_of(document: Document, name_or_path: str | Path, asked: ModelOptions, batch: int) -> Workload:
    """Return the workload of a document, or one chip's share of it."""
    mesh = mesh_in(document)
    stages = mesh.get(STAGE, 1)
    if asked.microbatches is not None and stages < 2:
        says = "only a pipeline has microbatches; add stage to --mesh, such as stage=4, or leave it out"
        raise InputError(Problem(says, f"--microbatches {asked.microbatches}"))
    if not mesh:
        return _of_chip(document, asked, batch)
    from tpusim.network.pipeline_stages import microbatches_of, staged
    from tpusim.network.sharding import share

    foreign = is_foreign(name_or_path)
    if stages > 1 and foreign and not names_sizes(name_or_path):
        says = "a model of another tool names no blocks that stages could have; part it along other axes"
        raise InputError(Problem(says, f"--mesh {STAGE}={stages}"))
    # A stage runs one microbatch at a time, so that is what its layers are for.
    parts = microbatches_of(batch_of_a_chip(batch, mesh), stages, asked.microbatches) if stages > 1 else 1

    def with_mesh(mesh: Mesh) -> Workload:
        # Models of other tools are read for as many images as a chip has.
        other = open_workload(name_or_path, replace(asked, mesh=mesh)) if foreign else None
        own = other or document.override(MESH, dict(mesh), document.place(MESH))
        return _of_chip(own, asked, batch // parts)

    made = share(with_mesh, mesh)
    return staged(made, stages, parts) if stages > 1 else made


USUAL_BATCH = 8
"""Images at a time, if no batch is given."""


def run_batch(asked: int | None) -> RunBatch:
    """Return the batch of a run; None: none was asked for. Raises InputError."""
    return RunBatch(USUAL_BATCH, usual=True) if asked is None else RunBatch(images_of(asked))


def batch_for(document: Document, asked: RunBatch) -> int:
    """Return the batch that is asked for; where none is and the usual one does not fit, the least one of the file."""
    chips = prod(chips for axis, chips in mesh_in(document).items() if axis in OF_BATCH)
    fits = not document.images and asked.images % (document.multiple * chips) == 0
    return document.least_batch * chips if asked.usual and not fits else asked.images


def images_of(batch: object) -> int:
    """Return a sound batch. Raises InputError."""
    try:
        return whole_number(batch, 1, MOST_IMAGES)
    except InputError as error:
        raise InputError(Problem(str(error), "batch")) from None


def open_workload(name_or_path: str | Path, asked: ModelOptions = NOTHING) -> Document:
    """Open the file behind a workload: its content, or what its format makes of it, with each block as often as it
    comes.

    Raises InputError when it is no YAML mapping, or not of the format that its name promises.
    """
    document = repeated(described(name_or_path, asked))
    layers, folder = document.data.get("layers"), Path(name_or_path).parent
    if is_foreign(name_or_path) or not isinstance(layers, list):
        return document
    return replace(document, data={**document.data, "layers": [_beside(each, folder) for each in layers]})


def described(name_or_path: str | Path, asked: ModelOptions = NOTHING) -> Document:
    """Read the file behind a workload, with the sizes that are asked for, and each of its blocks once.

    Raises InputError as `open_workload` does.
    """
    if asked.shapes is not None and not is_function(name_or_path):
        says = "only a function of JAX, FILE.py:FUNCTION, has shapes of arguments; leave it out"
        raise InputError(Problem(says, f"--shapes {asked.shapes}"))
    foreign = is_foreign(name_or_path)
    # Ahead of all that multiplies its sizes.
    _check_mesh(asked.mesh)
    if asked.mesh and is_function(name_or_path):
        says = "a function of JAX says by shard_map what its chips share; leave it out"
        raise InputError(Problem(says, f"--mesh {mesh_text(asked.mesh)}"))
    if foreign and not names_sizes(name_or_path):
        if asked.batch is not None:
            asked = replace(asked, batch=asked.batch._replace(images=batch_of_a_chip(asked.batch.images, asked.mesh)))
        if asked.phase is not None:
            raise InputError(Problem("only a workload file has phases; leave it out", f"--phase {asked.phase}"))
        return _stored_as(read(Path(name_or_path), asked), asked)
    document = read(Path(name_or_path), asked) if foreign else open_document(name_or_path, "workloads")
    phases, phase = document.data.get(PHASES), asked.phase
    if phase is None and asked.training is not None and isinstance(phases, Mapping) and TRAINING in phases:
        phase = TRAINING
    document = in_phase(_with_batch(document), phase)
    return with_sizes(_stored_as(document, asked), asked.dims)


ONE_BATCH, MULTIPLE = "batch", "multiple"
"""The keys of a file that say which batches its entries are for."""


def _with_batch(document: Document) -> Document:
    """Return the document for the batches that it says; what is wrong there is told with all else of the file."""
    told = document.data.get(ONE_BATCH), document.data.get(MULTIPLE)
    images, multiple = (each if isinstance(each, int) and each > 0 else None for each in told)
    return replace(document, images=images, multiple=multiple or 1)


WEIGHTS, CACHES = "weights", "caches"
"""The keys of a file that say how HBM has weights and caches."""


def _stored_as(document: Document, asked: ModelOptions) -> Document:
    """Return the document with weights and caches stored as is asked, in place of what it says."""
    for key, stored in ((WEIGHTS, asked.weights), (CACHES, asked.caches)):
        if stored is not None:
            document = document.override(key, stored, (f"--{key} {stored}", sys.maxsize))
    if asked.mesh:
        option = f"--mesh {mesh_text(asked.mesh)}", sys.maxsize
        document = document.override(MESH, dict(asked.mesh), option)
        document = replace(document, moved={**document.moved, **{f"{MESH}.{axis}": option for axis in asked.mesh}})
    return document


def _check_mesh(mesh: Mesh) -> None:
    """Check a mesh that a run asks for. Raises InputError with every problem."""
    try:
        read_mesh(mesh)
    except InputError as error:
        raise InputError([Problem(each.message, f"--mesh {mesh_text(mesh)}") for each in error.problems]) from None


# ---- phases

PHASES = "phases"
PREFILL, DECODE = "prefill", "decode"
"""The phases of a language model's file in which a prompt is read, and in which tokens are made."""
TRAINING = "training"
"""The phase of a training step, where a file has one."""


def in_phase(document: Document, phase: str | None) -> Document:
    """Return the document with the sizes of a phase that it names.

    Raises InputError where there is no such phase, or where what the file says of its phases is wrong.
    """
    given = document.data.get(PHASES)
    if given is None:
        if phase is None:
            return document
        says = f"the workload has no phases; leave it out (there is no {show(phase)})"
        raise InputError(Problem(says, f"--phase: {document.label}"))
    named = sizes_named(document)
    if not isinstance(given, Mapping) or not given or not all(isinstance(each, Mapping) for each in given.values()):
        raise InputError(document.problem(PHASES, f"{show(given)} names no phases; write sizes for each: {_PHASES}"))
    there = f"its sizes: {', '.join(named)}"
    problems = [
        document.problem(
            f"{PHASES}.{name}.{each}", f"there is no size {show(each)}{did_you_mean(each, named) or ';'} {there}"
        )
        for name, sizes in given.items()
        for each in sizes
        if each not in named
    ]
    if problems:
        raise InputError(problems)
    if phase is None:
        return document
    if phase not in given:
        hint = did_you_mean(phase, [*map(str, given)]) or ";"
        says = f"there is no phase {show(phase)}{hint} phases: {', '.join(map(str, given))}"
        raise InputError(Problem(says, f"--phase: {document.label}"))
    for name, value in given[phase].items():
        document = document.override(f"sizes.{name}", value, document.place(f"{PHASES}.{phase}.{name}"))
    return document


def _beside(layer: object, folder: Path) -> object:
    """Return a layer as a file gives it, with the path of its file of offsets from here instead of from that folder."""
    given = layer.get("offsets") if isinstance(layer, Mapping) else None
    if not isinstance(layer, Mapping) or not isinstance(given, str) or not given.endswith(".npz"):
        return layer
    return {**layer, "offsets": str(folder / given)}


def workload_of(document: Document, batch: int, ops: str | None = None, reader: EntryReader | None = None) -> Workload:
    """Return the workload that `document` describes, for `batch` images, of the `ops` asked for, else those the file
    names. A `reader` that has read its entries for other sizes reads only those that differ.

    Where the file has a mesh, it is one chip's share without what chips exchange (`network/sharding.py`), and the batch
    is that of all chips.

    Raises InputError with every problem of it; a batch that its sizes are not for.
    """
    mesh = mesh_in(document)
    _check_axes(document, mesh)
    batch = batch_of_a_chip(batch, mesh)
    if document.images and batch != document.images:
        says = f"its layers are for {counted(document.images, 'image')}; give that batch, not {batch:,}"
        raise InputError(Problem(says, document.label))
    if batch % document.multiple:
        says = f"{document.label} is for {document.multiple:,} images at once; give {document.multiple:,} or a multiple"
        raise InputError(Problem(says, f"batch {batch}"))
    names, reader = names_in(document, batch), reader or EntryReader(document)
    context = {NAMES: names, _READ: partial(reader.read, names, wiring_of(document, batch))}
    file = _FILE.read(document, context, _problems_together(document, names))
    parts = reader.parts(file.layers)
    if file.training:
        wrong = file.training.misnamed(parts.layers)
        problems = [document.problem(path_of((TRAINING, key, at)), says) for (key, at), says in wrong]
        if problems:
            raise InputError(problems)
    same = {name: getattr(file, name) for name in _SAME}
    same["mesh"] = file.mesh or file.share_of
    _check_share(document, parts.collectives, dict(file.share_of))
    work = narrowed(Workload(batch=batch, **parts._asdict(), **same), document)
    return work.with_asked(ops, file.ops)


def _check_axes(document: Document, mesh: Mesh) -> None:
    """Check that a file says what the axes of a mesh part, and that sizes have other names. Raises InputError."""
    if mesh and SHARE_OF in document.data:
        raise InputError(document.problem(MESH, "the file is one chip's share already; leave the mesh out"))
    taken = {BATCH, *sizes_named(document)}
    problems, found = list[Problem](), set[str]()
    for path, axes in _axes_told(document):
        found.update(axes)
        problems += [document.problem(path, f"{axis} is a size, and no axis; write an axis of a mesh, such as tensor")
                     for axis in axes if axis in taken]  # fmt: skip
    known = [*dict.fromkeys((*OF_BATCH[:2], *sorted(found), STAGE))]
    problems += [
        document.problem(f"{MESH}.{axis}", f"nothing is parted along {axis}{did_you_mean(axis, known) or ';'} there is "
                         f"{', '.join(known)}; a file says under shard: which sizes an axis parts")
        for axis in mesh if axis not in known
    ]  # fmt: skip
    if problems:
        raise InputError(problems)


def _axes_told(document: Document) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the places of a file that name axes which part sizes, with these axes."""
    for name, axes in shard_in(document).items():
        yield f"{SHARD}.{name}", axes
    entries = document.data.get("layers")
    for at, entry in enumerate(entries if isinstance(entries, list | tuple) else ()):
        if isinstance(entry, Mapping) and entry.get(SHARD):
            # What is wrong with an entry is told with all else of it.
            with suppress(InputError):
                yield from ((f"layers[{at}].{SHARD}", axes) for _, axes in read_shard(entry[SHARD]))


def _check_share(document: Document, collectives: Iterable[CollectiveLayer], mesh: Mesh) -> None:
    """Check that a file which is one chip's share has the mesh of its collectives. Raises InputError."""
    there = f"there is {', '.join(mesh)}" if mesh else f"a file says under {SHARE_OF}: how many chips an axis has"
    problems = [
        document.problem(SHARE_OF, f"no axis {show(axis)} of {each.name}{did_you_mean(axis, mesh) or ';'} {there}")
        for each in collectives
        for axis in each.over
        if axis not in mesh
    ]
    if problems:
        raise InputError(problems)


SHARE_OF = "share_of"
"""The key of a file that is one chip's share: the mesh whose chips share the network."""
_SAME = "name", "source", "not_timed", "not_known", "sizes", "training", "grows", "chips", "mesh"
"""Keys of a file that a workload has as they are."""


def narrowed(work: Workload, document: Document) -> Workload:
    """Return the workload of a sound file with weights and caches stored as the file says."""
    given = (document.data.get(key, "computed") for key in (WEIGHTS, CACHES))
    return work.with_stored(*given)


def _layers(entries: object, info: ValidationInfo) -> tuple[Read, ...]:
    """Read the layers of all entries of a file."""
    if not isinstance(entries, list | tuple) and entries is not None:
        raise InputError(f"{show(entries)} is not a list; start each layer with '- '")
    if not entries:
        raise InputError(f"no layers; write at least one, e.g. - {EXAMPLE}")
    read: Callable[[], tuple[Read, ...]] = (info.context or {})[_READ]
    return read()


def _problems_together(document: Document, names: Mapping[str, int]) -> list[Problem]:
    """Return the problems that several entries have together: names that two of them have.

    Raises InputError when there are more layers than anybody meant, before any is made.
    """
    entries = document.data.get("layers")
    known = [(name_of(entry), count_of(entry, names)) for entry in entries] if isinstance(entries, list) else []
    if sum(count for _, count in known) > MOST_LAYERS:
        raise InputError(document.problem("layers", f"over {MOST_LAYERS:,} layers, counts included; use fewer"))
    called = [
        (index, each)
        for index, (name, count) in enumerate(known)
        for each in ([name] if count == 1 else numbered(str(name), count))
    ]
    inputs = input_names(document) if is_graph(entries) else ()
    return [document.problem(str(each.where), each.message) for each in taken_names(called, inputs)]


def _grows(given: object, info: ValidationInfo) -> str:
    names = [name for name in names_of(info) if name != BATCH]
    if given and given not in names:
        hint = did_you_mean(str(given), names) or ";"
        raise InputError(f"there is no size {show(given)}{hint} its sizes: {', '.join(names) or 'none'}")
    return str(given)


# ---- the file

_Shard: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
_PHASES = "{prefill: {tokens: context}, decode: {tokens: 1}}"


@validated
class _File:
    """A workload as its file has it, for every batch unless it says otherwise.

    Attributes:
        name: name of the network in results.
        layers: entries of the network in order, each with an op and the fields of that op. `{block: NAME, count: 32,
            layers: [...]}` stands for as many blocks of its layers in a row, called LAYER_1, LAYER_2 and so on; `input`
            in a block is what the block reads.
        source: where the sizes come from, for readers.
        not_timed: ops of the network that are no layers and take no time here, by name and count.
        not_known: ops of the network that tpusim does not know, by name and count; their work is missing.
        sizes: sizes that the entries use by name, each with its usual value; `--dim NAME=N` sets another.
        phases: sizes of the network's phases, by the name that `--phase` asks for, such as prefill and decode.
        grows: size that each token of a generation adds one to (`tpusim run --tokens`).
        mesh: axes along which chips share the network, such as {data: 2, tensor: 8} (`--mesh`).
        shard: sizes that axes of a mesh part, such as {heads: tensor}; `data`, `fsdp` and `expert` part the batch.
        chips: chips that share the network, of which the file has the part of one; what they exchange takes no time.
        share_of: axes along which chips share the network, of which the file has the part of one, also of the batch,
            with what they exchange as entries of op `collective`.
        batch: the only batch that the entries are for, as those of a topology that names its batch.
        multiple: number of which every batch is a multiple, as of a model for several images at once.
        inputs: names by which entries read the inputs of the network.
        training: what a training step adds to the network (`tpusim run --training`).
        weights: how HBM has second factors of products that no layer makes: `computed`, as they are multiplied, or as
            `int8` or `int4`, which are widened on their way (`--weights`).
        caches: how HBM has caches that products read (`--caches`).
        ops: whether `all` ops are timed, or those of the `array` alone, unless a run says otherwise (`--ops`).
    """

    name: Annotated[str, Name(), written("my_net")]
    layers: Annotated[tuple[Read, ...], Reader(_layers, "a list"), written(f"[{EXAMPLE}]")]
    source: Annotated[str, written("torchvision.models.alexnet")] = ""
    not_timed: Annotated[Counts, Reader(counts_of, _COUNTS)] = ()
    not_known: Annotated[Counts, Reader(counts_of, _COUNTS), written("{MyOp: 2}")] = ()
    sizes: Annotated[Sizes, Reader(read_sizes, "a mapping of names to whole numbers")] = ()
    grows: Annotated[str, Reader(_grows, "a name of sizes"), written("context")] = ""
    chips: Annotated[int, whole(MOST_CHIPS)] = 1
    mesh: Annotated[
        tuple[tuple[str, int], ...], Reader(read_mesh, "a mapping of axes to chips"), written("{data: 2}")
    ] = ()
    share_of: Annotated[
        tuple[tuple[str, int], ...], Reader(read_mesh, "a mapping of axes to chips"), written("{data: 2}")
    ] = ()
    shard: Annotated[_Shard, Reader(read_shard, "a mapping of sizes to axes"), written("{heads: tensor}")] = ()
    batch: Annotated[int | None, whole(MOST_IMAGES), written(4)] = None
    multiple: Annotated[int, whole(MOST_IMAGES)] = 1
    phases: Annotated[object, Reader(lambda given: given, "a mapping of names to sizes"), written(_PHASES)] = None
    inputs: Annotated[tuple[str, ...], Reader(inputs_of, "a list of names"), written("[image, mask]")] = (INPUT,)
    training: Training | None = None
    weights: Annotated[StoredTensor, Choice()] = "computed"
    caches: Annotated[StoredTensor, Choice()] = "computed"
    ops: Annotated[str, Reader(check_ops, " or ".join(OPS))] = "all"

    def __post_init__(self) -> None:
        if not any(each.layers for each in self.layers):
            raise InputError(Problem("no layers but entries that take no time; write at least one", "layers"))


_FILE = Form(_File)


# ---- written again

_PLAIN: Mapping[str, object] = {
    "kernel": None, "stride": [1], "dilation": [1], "padding": [0], "output_padding": [0], "groups": 1, "count": 1,
}  # fmt: skip
"""Fields whose values one number may stand for; a layer with exactly this default needs no such key."""


def yaml_of(document: Document) -> str:
    """Return the text of a file that reads as `document` does; its notes are comments."""
    data, first = document.data, ("name", "source", "inputs", "not_timed", "not_known")
    keys = *first, *(key for key in data if key not in (*first, ONE_BATCH, MULTIPLE, "layers"))
    lines = [f"# {note}" for note in document.notes]
    lines += [_flow({key: data[key]})[1:-1] for key in keys if data.get(key)]
    lines += [f"{ONE_BATCH}: {document.images}"] if document.images else []
    lines += [f"{MULTIPLE}: {document.multiple}"] if document.multiple > 1 else []
    lines += ["layers:", *_lines_of(data["layers"], "  ")]
    return "".join(f"{line}\n" for line in lines)


def _lines_of(entries: Iterable[Mapping[str, Any]], indent: str) -> Iterator[str]:
    """Yield the lines of entries, and of those in blocks."""
    for entry in entries:
        if BLOCK in entry:
            first, *others = (key for key in entry if key != "layers")
            yield f"{indent}- {first}: {entry[first]}"
            yield from (f"{indent}  {key}: {entry[key]}" for key in (*others,))
            yield f"{indent}  layers:"
            yield from _lines_of(entry["layers"], f"{indent}    ")
            continue
        # Defaults are left out, and several equal numbers become one.
        alike = {key: _one(value) if key in _PLAIN else value for key, value in entry.items()}
        short = {key: value for key, value in alike.items() if key not in _PLAIN or value != _one(_PLAIN[key])}
        yield f"{indent}- {_flow(short)}"


def _one(value: object) -> object:
    return value[0] if isinstance(value, list) and len({*value}) == 1 else value


def _flow(value: Mapping[str, Any]) -> str:
    """Write a value on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True)
    return text.strip()
