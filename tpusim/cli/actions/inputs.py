"""Inputs of a command from its options; values of a network from end to end; and the action of `tpusim import`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tpusim.api.asked import AskedRun, WorkloadOptions, check_held, machine_for, unasked
from tpusim.api.asked import resolved as jobs_of
from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.base.files import probe, write
from tpusim.base.words import counted
from tpusim.cli.json_output import STDOUT
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.hbm_need import hbm_need
from tpusim.flow.jobs import Jobs
from tpusim.flow.numbers import INTEGERS, numbers_of
from tpusim.input.scalars import INTEGER, whole_number
from tpusim.input.source import Arrays, read_arrays, write_arrays
from tpusim.machines.family import Machine
from tpusim.network.blocks import repeated
from tpusim.network.formats import FORMATS, ModelOptions, is_foreign
from tpusim.network.mesh import parse_mesh
from tpusim.network.workload import MOST_SIZE, Workload
from tpusim.network.workload_file import batch_for, described, run_batch, workload_of, yaml_of
from tpusim.numerics.element_types import F32
from tpusim.report.text import quantity
from tpusim.result.vocabulary.figures import BYTES, COUNTS
from tpusim.result.vocabulary.runs import left_out

if TYPE_CHECKING:
    from tpusim.flow.values import Journey
    from tpusim.network.graph import Graph
    from tpusim.numerics.element_types import Values


def tell(note: str) -> None:
    """Say on stderr what there is to know of a workload or a machine."""
    say(sys.stderr, f"Note: {note}")


def machine_told(hardware: str, changes: Sequence[str] | None) -> Machine:
    """Return the machine as its file has it; what there is to know of a file of another tool is told on stderr.

    Raises InputError with every problem of the file.
    """
    machine, notes = machine_for(hardware, changes)
    for each in notes:
        tell(each)
    return machine


def resolved(asked: AskedRun, lowering: str | None, layers: str = "*", dtype: str = INTEGERS) -> Jobs:
    """Return the jobs of the layers that `layers` picks; what a training step keeps in HBM is told on stderr.

    Raises InputError as `resolve`, `Jobs.picked` and `check_held` do.
    """
    with Meter() as meter:
        jobs = jobs_of(asked.work, asked.machine, lowering, layers, dtype, meter.step)
    if asked.work.phases:
        tell(_hbm_told(jobs))
    picked = jobs.picked(layers)
    check_held(picked, asked)
    return picked


def _hbm_told(step: Jobs) -> str:
    """Say what a training step keeps in HBM."""
    need, capacity = hbm_need(step.work, step.hardware), step.family.capacity(step.hardware)
    of = f" of {quantity(capacity, BYTES)}" if capacity else ""
    weights, maps = quantity(need.weights, BYTES), quantity(need.between, BYTES)
    return (
        f"the step takes {quantity(need.total, BYTES)}{of} of HBM: {weights} for weights and what their updates keep, "
        f"{maps} for maps between layers while {need.at} runs"
    )


def workload_options(parameters: Mapping[str, Any]) -> WorkloadOptions:
    """Return what the parameters of a command ask of the workload: those that `WorkloadOptions` has, too.

    Raises:
        InputError: with every `--dim` that is not of that form, or a faulty mesh.
    """
    asked = {name: parameters[name] for name in WorkloadOptions.__annotations__ if name in parameters}
    dims, mesh = asked.get("dims"), asked.get("mesh")
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
    asked |= {"dims": given, "mesh": None if mesh is None else parse_mesh(mesh)}
    return cast("WorkloadOptions", asked)


def tell_unasked(work: Workload) -> None:
    """Say on stderr, where nobody named a machine, that it is the paper's, if the network is none of convolutions."""
    if told := unasked(work):
        tell(told)


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
            raise InputError(
                Problem(f"{says}; leave --weights out, with --input and --save-outputs", next(iter(work.narrow)))
            )
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
    # Ops that --ops leaves out are not told of.
    if missing := left_out(work.never_timed, work.not_known):
        tell(missing)
