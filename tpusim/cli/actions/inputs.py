"""Inputs of a command from its options; values of a network from end to end; and the action of `tpusim import`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.files import probe, write
from tpusim.base.words import counted
from tpusim.cli.json_output import STDOUT
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.need import hbm_need
from tpusim.flow.numbers import INTEGERS, numbers_of
from tpusim.input.scalars import INTEGER, whole_number
from tpusim.input.source import Arrays, open_document, read_arrays, write_arrays
from tpusim.machines.family import Machine, machine_of
from tpusim.network.blocks import repeated
from tpusim.network.formats import FORMATS, NOTHING, ModelOptions, is_foreign, is_function
from tpusim.network.workload import ALL, MOST_SIZE, NONE, Workload
from tpusim.network.workload_file import (
    batch_for,
    described,
    open_workload,
    run_batch,
    workload_of,
    yaml_of,
)
from tpusim.numerics.element_types import F32
from tpusim.report.text import quantity
from tpusim.result.vocabulary.figures import BYTES, COUNTS
from tpusim.result.vocabulary.runs import left_out

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.network.graph import Graph
    from tpusim.numerics.element_types import Values


def load(
    workload: str, hardware: str, batch: int | None, changes: Sequence[str] | None, asked: ModelOptions = NOTHING
) -> tuple[Workload, Machine]:
    """Return the workload and the machine as their files have them.

    Without a `batch`, the batch is the number of images in the arrays that are `asked` for, or that the file says, else
    the usual one.

    What there is to know of a model of another tool is told on stderr.

    Raises:
        InputError: with every problem of the first of them that cannot be used.
    """
    machine = machine_told(hardware, changes)
    images = run_batch(batch)
    document = open_workload(workload, replace(asked, batch=images))
    if batch and document.images and batch != document.images:
        plain = "shapes are for" if is_function(workload) else "layers are for"
        held = "arrays of --input hold" if asked.arrays else plain
        says = f"the {held} {counted(document.images, 'image')}"
        raise InputError(Problem(f"{says}; leave --batch out, or give as many", f"--batch {batch}"))
    ops = asked.ops or ("all" if asked.training is not None else None)
    work = workload_of(document, batch_for(document, images), ops)
    if asked.training is not None:
        from tpusim.network.training import USUAL, training_step

        work = training_step(work, replace(work.training or USUAL, **asked.training))
    say(sys.stderr, *(f"Note: {note}" for note in document.notes))
    return work, machine


def machine_told(hardware: str, changes: Sequence[str] | None) -> Machine:
    """Return the machine as its file has it; what there is to know of a file of another tool is told on stderr.

    Raises InputError with every problem of the file.
    """
    document = open_document(hardware, "configs")
    machine = machine_of(document, changes or [])
    say(sys.stderr, *(f"Note: {note}" for note in document.notes))
    return machine


def resolved(work: Workload, machine: Machine, lowering: str | None, layers: str = "*", dtype: str = INTEGERS) -> Jobs:
    """Return the jobs of the layers that `layers` picks; what a training step keeps in HBM is told on stderr.

    Raises InputError as `resolve` and `Jobs.picked` do.
    """
    place = {layer.name: index for index, layer in enumerate((work.entire or work).layers)}
    # Timing every layer with and without riders may take a while, so it reports progress.
    with Meter(len(place)) as meter:

        def watch(layer: str, doing: str) -> None:
            meter.show(place[layer], f"{layer}: {doing}")

        jobs = resolve(work, machine, lowering, layers=layers, dtype=dtype, watch=watch)
    if work.phases:
        say(sys.stderr, f"Note: {_hbm_told(jobs)}")
    return jobs.picked(layers)


def _hbm_told(step: Jobs) -> str:
    """Say what a training step keeps in HBM."""
    need, capacity = hbm_need(step.work, step.hardware), step.family.capacity(step.hardware)
    of = f" of {quantity(capacity, BYTES)}" if capacity else ""
    weights, maps = quantity(need.weights, BYTES), quantity(need.between, BYTES)
    return (
        f"the step takes {quantity(need.total, BYTES)}{of} of HBM: {weights} for weights and what their updates keep, "
        f"{maps} for maps between layers while {need.at} runs"
    )


def options_of(
    dims: Sequence[str] | None, skip_unknown: bool, ops: str | None = None, arrays: Arrays | None = None,
    shapes: str | None = None, training: Mapping[str, Any] | None = None, phase: str | None = None,
    weights: str | None = None, caches: str | None = None,
) -> ModelOptions:  # fmt: skip
    """Return what `--dim NAME=N ...`, `--skip-unknown`, `--ops`, `--shapes`, `--training`, `--phase`, `--weights`,
    `--caches` and the arrays of `--input` ask.

    Raises:
        InputError: with every `--dim` that is not of that form, or unknown ops; a training step of some ops alone.
    """
    if training is not None and ops == "array":
        says = "a training step takes the ops of the vector unit, too: gradients go through them"
        raise InputError(Problem(f"{says}; leave --ops out", "--training"))
    given: dict[str, int] = {}
    problems: list[Problem] = []
    for text in dims or []:
        name, _, size = (part.strip() for part in text.rpartition("="))
        if not name:
            problems.append(Problem("no name; write NAME=N, such as --dim seq=128", f"--dim {text}"))
            continue
        if name in given:
            problems.append(Problem(f"{name} is {given[name]} already; give it once", f"--dim {text}"))
        try:
            given[name] = whole_number(int(size) if INTEGER.fullmatch(size) else size, 1, MOST_SIZE)
        except InputError as error:
            problems.append(Problem(str(error), f"--dim {text}"))
    if problems:
        raise InputError(problems)
    return ModelOptions(given, skip_unknown, ops, arrays or {}, shapes, training, phase, weights, caches)


def training_of(wanted: bool, keep: Sequence[str] | None, optimizer: str | None) -> dict[str, Any] | None:
    """Return what `--training`, `--keep NAME ...` and `--optimizer` ask; None: no training step.

    Raises:
        InputError: one of the others without `--training`, or `all` or `none` beside names.
    """
    if not wanted:
        for option, given in (("--keep", keep), ("--optimizer", optimizer)):
            if given:
                raise InputError(Problem("only a training step has it; add --training", option))
        return None
    asked: dict[str, Any] = {"optimizer": optimizer} if optimizer else {}
    if keep:
        whole = {ALL, NONE} & {*keep}
        if whole and len(keep) > 1:
            raise InputError(Problem(f"{', '.join(whole)} stands for itself; name it alone, or layers", "--keep"))
        asked["keep"] = keep[0] if whole else tuple(keep)
    return asked


_NOT_OF_THE_PAPER = frozenset({
    "flash_attention", "embedding", "rotary", "layer_norm", "rms_norm", "top_k", "swiglu", "geglu", "gelu", "silu",
    "softmax", "sigmoid", "tanh", "erf", "exp", "softplus", "hard_sigmoid", "hard_swish", "soft_cap",
})  # fmt: skip
"""Ops of language, and functions of reals: more than one of them is in none of the paper's networks."""
_PAPER, _COMPARED = "tpu_v2", "tpu_v6e"
"""The machine of commands whose user names none, and one that chips were compared with."""


def tell_unasked(work: Workload) -> None:
    """Say on stderr, where nobody named a machine, that it is the paper's, if the network is none of convolutions."""
    ops = Counter(layer.op for layer in work.layers) + Counter(dict(work.not_timed))
    found = [op for op in ops if op in _NOT_OF_THE_PAPER]
    # A convolutional network may end with one of them.
    if sum(ops[op] for op in found) > 1 or any(layer.op in found for layer in work.layers[:1]):
        listed = ", ".join(found[:3]) + ", ..." * (len(found) > 3)
        says = f"where --hardware names no machine, it is {_PAPER}, the paper's, for convolutions"
        says += f"; no chip was compared with its {listed}"
        say(sys.stderr, f"Note: {says}; take --hardware {_COMPARED}, which was held against its chip")


def tell_left_out(work: Workload) -> None:
    """Say on stderr which ops of its network take no time, but for those that --ops leaves out."""
    if missing := left_out(work.never_timed, work.not_known):
        say(sys.stderr, f"Note: {missing}")


# ---- --input and --save-outputs: the values of a network from end to end


@dataclass(frozen=True)
class NetworkData:
    """Source of a network's inputs, and target of its outputs; None: random inputs, no outputs kept.

    Where nothing is to be computed (`check` is false), the inputs settle sizes and branches alone.
    """

    source: Path | None
    target: Path | None
    check: bool = True

    @cached_property
    def arrays(self) -> Arrays:
        """The inputs, by name. Raises InputError."""
        return read_arrays(self.source) if self.source else {}

    @property
    def asked(self) -> bool:
        """Whether values are to go from layer to layer."""
        return bool((self.source and self.check) or self.target)

    def dtype(self, given: str | None) -> str:
        """The element type if none is `given`: the network's, or small whole numbers."""
        return given or (F32.name if self.asked else INTEGERS)

    def journey(self, workload: str, jobs: Jobs, asked: ModelOptions, sums: str, seed: int) -> Journey:
        """The values on their way, before the first layer.

        Raises:
            InputError: the workload is no model with weights, inputs or outputs cannot be read or written, or values
                cannot be computed.
        """
        work, dtype = jobs.work, jobs.dtype
        if not self.check:
            raise InputError("--no-check: nothing is computed; leave it out, with --save-outputs")
        if dtype == INTEGERS:
            says = f"--dtype {INTEGERS}: they are made for each layer"
            raise InputError(f"{says}; leave it out, with --input and --save-outputs")
        if self.target is not None:
            if self.target.suffix.lower() != ".npz":
                says = f"arrays are written as .npz, not as {self.target.suffix or 'no suffix'}"
                raise InputError(Problem(f"{says}; name it FILE.npz", str(self.target)))
            probe(self.target)
        from tpusim.flow.values import Journey
        from tpusim.network.formats import read_graph

        if work.narrow:
            says = "the model's weights are no whole numbers of that type, and none are rounded here"
            raise InputError(Problem(f"{says}; leave --weights out, with --input and --save-outputs", work.narrow[0]))
        graph = read_graph(Path(workload), asked, work.batch)
        return Journey(graph, work, self._inputs(graph, work.batch, seed), numbers_of(dtype, sums))

    def save(self, journey: Journey) -> None:
        """Write the outputs, if a target is given."""
        if self.target is not None:
            write_arrays(self.target, journey.outputs())

    def _inputs(self, graph: Graph, batch: int, seed: int) -> dict[str, Values]:
        from tpusim.flow.values import checked, drawn, listed

        if self.source is None:
            made = drawn(graph, batch, seed)
            say(sys.stderr, f"Note: {listed(made)}: random, as no --input FILE.npz gives it")
            return made
        try:
            return checked(graph, self.arrays, batch)
        except InputError as error:
            placed = (replace(each, where=each.where or str(self.source)) for each in error.problems)
            raise InputError(placed) from None


# ---- `tpusim import`

YAML = (".yaml", ".yml")


def import_and_report(file: Path, out: Path | None, batch: int | None, asked: ModelOptions) -> None:
    """Write the workload that a file of another tool holds into `out` (None, -: here), and say on stderr what was
    read.
    """
    wanted = run_batch(batch)
    if out == Path(STDOUT):
        out = None
    if file.suffix.lower() == ".cfg":
        raise InputError(Problem("a machine, not a network; tpusim run WORKLOAD --hardware takes it", str(file)))
    if not is_foreign(file):
        hint = did_you_mean(file.suffix, FORMATS) or ";"
        raise InputError(f"{file}: its name says nothing of a format{hint} files that are read: {', '.join(FORMATS)}")
    if out is not None:
        if out.suffix.lower() not in YAML:
            raise InputError(f"{out}: a workload is written as {' or '.join(YAML)}, not as {out.suffix or 'no suffix'}")
        probe(out)
    document = described(file, asked)
    images = batch_for(document, wanted)
    work = workload_of(repeated(document), images, asked.ops)
    text = yaml_of(document)
    if out is None:
        say(sys.stdout, *text.splitlines())
    else:
        write(out, text.encode())
    macs = quantity(sum(layer.macs(images) for layer in work.layers), COUNTS)
    ops = ", ".join(f"{op} {many:,}" for op, many in Counter(layer.op for layer in work.layers).most_common())
    layers = f"{counted(len(work.layers), 'layer')} ({ops})"
    say(sys.stderr, f"{out or work.name}: {layers}, {macs}MAC at batch {images}")
    say(sys.stderr, *(f"Note: {note}" for note in document.notes))
    tell_left_out(work)
