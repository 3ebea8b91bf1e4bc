"""What is asked for: a workload and a machine, by name, path or as objects, and the options of the workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.numbers import INTEGERS
from tpusim.input.document import Document
from tpusim.input.source import open_document
from tpusim.machines.family import Machine, machine_of
from tpusim.machines.lowered import unheard
from tpusim.network.formats import ModelOptions, is_function
from tpusim.network.workload import ALL, NONE, Workload
from tpusim.network.workload_file import batch_for, open_workload, run_batch, shared, workload_of
from tpusim.result.vocabulary.runs import left_out

if TYPE_CHECKING:
    from tpusim.input.form import Overrides

Note = Callable[[str], None]
"""Called with a sentence about the workload or the machine, such as that ops take no time."""
Progress = Callable[[int, int, str], None]
"""Called before each step with the steps that are done, all steps, and what is next."""
WorkloadName = str | Path
MachineName = str | Path
_PAPER, _COMPARED = "tpu_v2", "tpu_v6e"
"""The machine of those who name none, and one that chips were compared with."""


class WorkloadOptions(TypedDict, total=False):
    """Options of a workload that is given by name: those of `load_workload`, and those of a training step.

    Attributes:
        dims: sizes that a workload file names, or that a model leaves open.
        phase: phase that the workload file names, such as decode.
        weights: how HBM has weights of products: int8 or int4.
        caches: how HBM has caches.
        mesh: axes along which chips share the network, such as {"data": 2, "tensor": 8}.
        skip_unknown: leave ops of a model out that tpusim does not know.
        ops: what is timed, all or array.
        shapes: shapes of the arguments of a function of JAX, as text.
        training: time a training step of the network.
        keep: layers whose outputs stay in HBM for the way back: all, none, or patterns of names.
        optimizer: how a training step updates weights: sgd or adam.
    """

    dims: Mapping[str, int]
    phase: str | None
    weights: str | None
    caches: str | None
    mesh: Mapping[str, int] | None
    skip_unknown: bool
    ops: str | None
    shapes: str | None
    training: bool
    keep: str | Sequence[str] | None
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
    training = _training(plain.pop("training", False), plain.pop("keep", None), plain.pop("optimizer", None))
    if training is not None and plain.get("ops") == "array":
        says = "a training step takes the ops of the vector unit, too: gradients go through them"
        raise InputError(Problem(f"{says}; leave --ops out", "--training"))
    mappings = {key: plain.get(key) or {} for key in ("dims", "mesh")}
    return ModelOptions(**{**plain, **mappings}, training=training)


def _training(wanted: bool, keep: str | Sequence[str] | None, optimizer: str | None) -> dict[str, Any] | None:
    """Return what a training step is asked for; None: no training step.

    Raises:
        InputError: one of the others without `training`, or `all` or `none` beside names.
    """
    if not wanted:
        for option, given in (("--keep", keep), ("--optimizer", optimizer)):
            if given:
                raise InputError(Problem("only a training step has it; add --training", option))
        return None
    asked: dict[str, Any] = {"optimizer": optimizer} if optimizer else {}
    if keep:
        names = [keep] if isinstance(keep, str) else keep
        if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
            says = f"{names!r:.80} names no layers; write all, none, or patterns of names"
            raise InputError(Problem(says, "--keep"))
        whole = {ALL, NONE} & {*names}
        if whole and len(names) > 1:
            raise InputError(Problem(f"{', '.join(whole)} stands for itself; name it alone, or layers", "--keep"))
        asked["keep"] = names[0] if whole else tuple(names)
    return asked


@dataclass(frozen=True)
class AskedRun:
    """A workload on a machine.

    Attributes:
        work: the workload as its file has it.
        machine: the machine.
        again: the workload for another batch; None where it is for one batch alone.
        unnamed: whether nobody named the machine.
        notes: what there is to know of the two.
    """

    work: Workload
    machine: Machine
    again: Callable[[int], Workload] | None
    unnamed: bool
    notes: tuple[str, ...] = ()


def asked_for(
    workload: WorkloadName | Workload,
    hardware: MachineName | Machine | None,
    batch: int | None,
    changes: Overrides | None,
    asked: ModelOptions,
    note: Note = unheard,
) -> AskedRun:
    """Return the workload and the machine that are asked for.

    Without a `batch`, the batch is the number of images in the arrays that are `asked` for, or that the file says, else
    the usual one. Without `hardware`, the machine is the paper's. `note` is called with each note as it comes.

    Raises:
        InputError: with every problem of the first of them that cannot be used.
    """
    machine, notes = machine_for(hardware, changes)
    for each in notes:
        note(each)
    if isinstance(workload, Workload):
        if batch not in (None, workload.batch) or asked != ModelOptions():
            says = "it is loaded already; give batch and options to load_workload, or the workload by its name"
            raise InputError(Problem(says, f"workload {workload.name}"))
        return AskedRun(workload, machine, None, hardware is None, tuple(notes))
    name, images = str(workload), run_batch(batch)
    document = open_workload(name, replace(asked, batch=images))
    if batch and document.images and batch != document.images:
        plain = "shapes are for" if is_function(name) else "layers are for"
        held = "arrays of --input hold" if asked.arrays else plain
        says = f"the {held} {counted(document.images, 'image')}"
        raise InputError(Problem(f"{says}; leave --batch out, or give as many", f"--batch {batch}"))

    def of_images(batch: int) -> Workload:
        return shared(document, name, replace(asked, batch=images), lambda each: of_document(each, batch))

    def of_document(document: Document, batch: int) -> Workload:
        work = workload_of(document, batch, asked.ops or ("all" if asked.training is not None else None))
        if asked.training is None:
            return work
        from tpusim.network.training import USUAL, training_step

        return training_step(work, replace(work.training or USUAL, **asked.training))

    work = of_images(batch_for(document, images))
    for each in document.notes:
        note(each)
    again = None if document.images else of_images
    return AskedRun(work, machine, again, hardware is None, (*notes, *document.notes))


def machine_for(hardware: MachineName | Machine | None, changes: Overrides | None) -> tuple[Machine, Sequence[str]]:
    """Return a machine, the paper's unless one is named, and what there is to know of its file.

    Raises InputError with every problem of the file.
    """
    if isinstance(hardware, Machine):
        return hardware.with_overrides(changes) if changes else hardware, ()
    document = open_document(_PAPER if hardware is None else hardware, "configs")
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
    says = f"where --hardware names no machine, it is {_PAPER}, the paper's, for convolutions"
    says += f"; no chip was compared with its {listed}"
    return f"{says}; take --hardware {_COMPARED}, which was held against its chip"
