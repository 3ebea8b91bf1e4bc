"""What is asked for: a workload and a machine, by name, path or as objects, and the options of the workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, Unpack

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.flow.hbm_need import fitting_mesh, held_in_hbm
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.numbers import INTEGERS
from tpusim.input.source import open_document
from tpusim.machines.family import PAPER_MACHINE, Machine, machine_of
from tpusim.machines.lowered import unheard
from tpusim.network.formats import ModelOptions, is_function
from tpusim.network.mesh import OF_BATCH, STAGE, mesh_in, on_chips
from tpusim.network.workload import ALL, NONE, Workload
from tpusim.network.workload_file import SHARE_OF, batch_for, open_workload, run_batch, shared
from tpusim.result.vocabulary.runs import left_out

if TYPE_CHECKING:
    from tpusim.input.form import Overrides
    from tpusim.machines.tpu.slices.slice import ChipSlice

Note = Callable[[str], None]
"""Called with a sentence about the workload or the machine, such as that ops take no time."""
Progress = Callable[[int, int, str], None]
"""Called before each step with the steps that are done, all steps, and what is next."""
WorkloadName = str | Path
SliceName: TypeAlias = "str | Path | ChipSlice"
MachineName = str | Path
_COMPARED = "tpu_v6e"
"""A machine that chips were compared with."""


class WorkloadOptions(TypedDict, total=False):
    """Options of a workload that is given by name: those of `load_workload`, and those of a training step.

    Attributes:
        dims: sizes that a workload file names, or that a model leaves open.
        phase: phase that the workload file names, such as decode.
        weights: how HBM has weights of products: int8 or int4.
        caches: how HBM has caches.
        mesh: axes along which chips share the network, such as {"data": 2, "tensor": 8}; beside a slice "*" stands for
            the chips that the other axes leave.
        microbatches: parts of a batch that go through the stages of a mesh that has some.
        skip_unknown: leave ops of a model out that tpusim does not know.
        ops: what is timed, all or array.
        shapes: shapes of the arguments of a function of JAX, as text.
        training: time a training step of the network.
        keep: layers whose outputs stay in HBM for the way back: all, none, or patterns of names.
        offload: those of them that wait for it in the memory of the host: likewise.
        optimizer: how a training step updates weights: sgd or adam.
    """

    dims: Mapping[str, int]
    phase: str | None
    weights: str | None
    caches: str | None
    mesh: Mapping[str, int | str] | None
    microbatches: int | None
    skip_unknown: bool
    ops: str | None
    shapes: str | None
    training: bool
    keep: str | Sequence[str] | None
    offload: str | Sequence[str] | None
    optimizer: str | None


def model_options(**given: Unpack[WorkloadOptions]) -> ModelOptions:
    """Return the options as readers of files take them.

    Raises:
        InputError: options that do not go together, or an unknown one.
    """
    if unknown := {*given} - {*WorkloadOptions.__annotations__}:
        known = ", ".join(WorkloadOptions.__annotations__)
        raise InputError(Problem(f"no such option of a workload; there is {known}", sorted(unknown)[0]))
    plain: dict[str, Any] = {**given}
    ways = {key: plain.pop(key, None) for key in ("keep", "offload", "optimizer")}
    training = _training(plain.pop("training", False), **ways)
    if training is not None and plain.get("ops") == "array":
        says = "a training step takes the ops of the vector unit, too: gradients go through them"
        raise InputError(Problem(f"{says}; leave --ops out", "--training"))
    mappings = {key: plain.get(key) or {} for key in ("dims", "mesh")}
    return ModelOptions(**{**plain, **mappings}, training=training)


_Names = str | Sequence[str] | None


def _training(wanted: bool, keep: _Names, offload: _Names, optimizer: str | None) -> dict[str, Any] | None:
    """Return what a training step is asked for; None: no training step.

    Raises:
        InputError: one of the others without `training`, or `all` or `none` beside names.
    """
    if not wanted:
        for option, given in (("--keep", keep), ("--offload", offload), ("--optimizer", optimizer)):
            if given is not None and given != []:
                raise InputError(Problem("only a training step has it; add --training", option))
        return None
    asked: dict[str, Any] = {} if optimizer is None else {"optimizer": optimizer}
    for key, given in (("keep", keep), ("offload", offload)):
        if given:
            asked[key] = _layers_named(given, f"--{key}")
    return asked


def _layers_named(given: str | Sequence[str], option: str) -> str | tuple[str, ...]:
    """Return all, none, or patterns of names. Raises InputError where they are neither, or both."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        says = f"{names!r:.80} names no layers; write all, none, or patterns of names"
        raise InputError(Problem(says, option))
    whole = {ALL, NONE} & {*names}
    if whole and len(names) > 1:
        raise InputError(Problem(f"{', '.join(whole)} stands for itself; name it alone, or layers", option))
    return names[0] if whole else tuple(names)


class AskedRun(NamedTuple):
    """A workload on a machine.

    Attributes:
        work: the workload as its file has it.
        machine: the machine.
        again: the workload for another batch; None where it is for one batch alone.
        unnamed: whether nobody named the machine.
        notes: what there is to know of the two.
        place: the slice of its chips, where one is named.
        meshed: the workload for another mesh; None where it is for one mesh, or one chip, alone.
    """

    work: Workload
    machine: Machine
    again: Callable[[int], Workload] | None
    unnamed: bool
    notes: tuple[str, ...] = ()
    place: ChipSlice | None = None
    meshed: Callable[[Mapping[str, int]], Workload] | None = None


def asked_for(
    workload: WorkloadName | Workload,
    hardware: MachineName | Machine | None,
    batch: int | None,
    changes: Overrides | None,
    asked: ModelOptions,
    note: Note = unheard,
    slice: SliceName | None = None,
) -> AskedRun:
    """Return the workload and the machine that are asked for.

    Without a `batch`, the batch is the number of images in the arrays that are `asked` for, or that the file says, else
    the usual one. Without `hardware`, the machine is the chip of the `slice`, else the paper's. Of a network without a
    mesh, the chips of a slice share the batch. `note` is called with each note as it comes.

    Raises:
        InputError: with every problem of the first of them that cannot be used.
    """
    changes, place = slice_for(slice, changes)
    machine, notes = machine_for(place.chip if place and hardware is None else hardware, changes)
    unnamed = hardware is None and place is None
    for said in notes:
        note(said)
    if isinstance(workload, Workload):
        if batch not in (None, workload.batch) or asked != ModelOptions():
            says = "it is loaded already; give batch and options to load_workload, or the workload by its name"
            raise InputError(Problem(says, f"workload {workload.name}"))
        return AskedRun(workload, machine, None, unnamed, tuple(notes), place)
    name, images = str(workload), run_batch(batch)
    if place:
        asked = replace(asked, mesh=on_chips(asked.mesh, place.name, place.chips))
    document = open_workload(name, replace(asked, batch=images))
    if place and not mesh_in(document) and SHARE_OF not in document.data:
        asked = replace(asked, mesh={OF_BATCH[0]: place.chips})
        document = open_workload(name, replace(asked, batch=images))
    if batch and document.images and batch != document.images:
        plain = "shapes are for" if is_function(name) else "layers are for"
        held = "arrays of --input hold" if asked.arrays else plain
        says = f"the {held} {counted(document.images, 'image')}"
        raise InputError(Problem(f"{says}; leave --batch out, or give as many", f"--batch {batch}"))

    def of_images(batch: int) -> Workload:
        return shared(document, name, replace(asked, batch=images), batch)

    def of_mesh(mesh: Mapping[str, int]) -> Workload:
        parts = asked.microbatches if mesh.get(STAGE, 1) > 1 else None
        wanted = replace(asked, mesh=mesh, microbatches=parts, batch=images)
        return shared(open_workload(name, wanted), name, wanted, all_images)

    all_images = batch_for(document, images)
    work = of_images(all_images)
    for each in document.notes:
        note(each)
    again = None if document.images else of_images
    meshed = of_mesh if work.mesh and name != _STDIN else None
    return AskedRun(work, machine, again, unnamed, (*notes, *document.notes), place, meshed)


_OF_SLICE = "slice."
_STDIN = "-"


def slice_for(slice: SliceName | None, changes: Overrides | None) -> tuple[Overrides | None, ChipSlice | None]:
    """Return the changes of the machine among all, and the slice with its own: those of `slice.FIELD`.

    Raises InputError with every problem of the slice, or where changes are of a slice that nobody names.
    """
    if isinstance(changes, Mapping):
        changes = [f"{path}={value}" for path, value in changes.items()]
    given: Sequence[str] = [changes] if isinstance(changes, str) else changes or ()
    own: list[str] = []
    others = changes
    # What is no text is refused by whoever reads the changes of the machine.
    if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        own = [each.strip() for each in given if each.strip().startswith(_OF_SLICE)]
        others = [each for each in given if each.strip() not in own]
    if slice is None:
        if own:
            raise InputError([Problem("no slice is named; name one with --slice", f"--set {each}") for each in own])
        return others, None
    # Imported here, as runs of one chip need nothing of it.
    from tpusim.machines.tpu.slices.slice import ChipSlice, load_slice

    if isinstance(slice, ChipSlice):
        if own:
            raise InputError(Problem("the slice is loaded already; set it with load_slice", f"--set {own[0]}"))
        return others, slice
    try:
        return others, load_slice(slice, [each.removeprefix(_OF_SLICE) for each in own])
    except InputError as error:
        placed = (each.where and each.where.replace("--set ", f"--set {_OF_SLICE}", 1) for each in error.problems)
        raise InputError(
            replace(each, where=where) for each, where in zip(error.problems, placed, strict=True)
        ) from None


def machine_for(hardware: MachineName | Machine | None, changes: Overrides | None) -> tuple[Machine, Sequence[str]]:
    """Return a machine, the paper's unless one is named, and what there is to know of its file.

    Raises InputError with every problem of the file.
    """
    if isinstance(hardware, Machine):
        return hardware.with_overrides(changes) if changes else hardware, ()
    document = open_document(PAPER_MACHINE if hardware is None else hardware, "configs")
    return machine_of(document, changes or []), document.notes


def resolved(
    work: Workload, machine: Machine, lowering: str | None, layers: str = "*", dtype: str = INTEGERS,
    progress: Progress = unheard,
) -> Jobs:  # fmt: skip
    """Return the jobs of a workload, of which `layers` will be picked. Raises InputError as `resolve` does."""
    place = {layer.name: index for index, layer in enumerate((work.entire or work).layers)}

    # Timing every layer with and without riders may take a while, so it reports progress.
    def watch(layer: str, doing: str) -> None:
        progress(place[layer], len(place), f"{layer}: {doing}")

    return resolve(work, machine, lowering, layers=layers, dtype=dtype, watch=watch)


def check_held(jobs: Jobs, asked: AskedRun) -> None:
    """Raise CapacityError where the HBM of a chip does not hold its share of what is asked for, with a mesh that fits.

    Meshes are those of as many chips.
    """
    meshed, mesh = asked.meshed, dict(jobs.work.mesh)
    if meshed is None:
        return

    def fitting() -> Mapping[str, int] | None:
        chips, training = prod(mesh.values()), bool(jobs.work.phases)
        return fitting_mesh(
            lambda other: resolve(meshed(other), jobs.hardware).work, jobs.machine, mesh, chips, training
        )

    held_in_hbm(jobs.work, jobs.machine, fitting)


_NOT_OF_THE_PAPER = frozenset({
    "flash_attention", "embedding", "rotary", "layer_norm", "rms_norm", "top_k", "swiglu", "geglu", "gelu", "silu",
    "softmax", "sigmoid", "tanh", "erf", "exp", "softplus", "hard_sigmoid", "hard_swish", "soft_cap",
})  # fmt: skip
"""Ops of language, and functions of reals: more than one of them is in none of the paper's networks."""


def notes_of(work: Workload, unnamed: bool) -> Iterator[str]:
    """Yield which ops of a network take no time, but for those that were left out on purpose; and of an `unnamed`
    machine that it is the paper's, if the network is none of convolutions.
    """
    if missing := left_out(work.never_timed, work.not_known):
        yield missing
    if unnamed and (told := unasked(work)):
        yield told


def unasked(work: Workload) -> str:
    """Say that a machine which nobody named is the paper's; empty where the network is one of convolutions."""
    ops = Counter(layer.op for layer in work.layers) + Counter(dict(work.not_timed))
    found = [op for op in ops if op in _NOT_OF_THE_PAPER]
    # A convolutional network may end with one of them.
    if sum(ops[op] for op in found) <= 1 and not any(layer.op in found for layer in work.layers[:1]):
        return ""
    listed = ", ".join(found[:3]) + ", ..." * (len(found) > 3)
    says = f"where --hardware names no machine, it is {PAPER_MACHINE}, the paper's, for convolutions"
    says += f"; no chip was compared with its {listed}"
    return f"{says}; take --hardware {_COMPARED}, which was held against its chip"
