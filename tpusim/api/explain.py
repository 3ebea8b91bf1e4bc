"""`tpusim explain`: why a layer, or a network, takes as long as it does, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from tpusim.api.answer import Answer, Row
from tpusim.api.asked import (
    MachineName,
    Note,
    Progress,
    SliceName,
    WorkloadName,
    WorkloadOptions,
    asked_for,
    check_held,
    model_options,
    notes_of,
    resolved,
)
from tpusim.base.errors import InputError, Problem
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import AUTO, candidates
from tpusim.machines.family import Machine, of_tpus_alone
from tpusim.machines.lowered import unheard
from tpusim.network.workload import Workload
from tpusim.report.tables.explain import explained
from tpusim.report.tables.explain_network import network_at_a_glance, network_explained
from tpusim.study.explain.bottleneck import Bottleneck, ExplainedLayer, alternatives, explain_layer, overlapping
from tpusim.study.explain.network import ExplainedNetwork, explain_network
from tpusim.study.explain.relaxation import Setup, relaxations

if TYPE_CHECKING:
    from tpusim.input.form import Overrides
    from tpusim.report.plots.figure import Picture


def explain(
    workload: WorkloadName | Workload,
    hardware: MachineName | Machine | None = None,
    *,
    layer: str | None = None,
    batch: int | None = None,
    lowering: str | None = None,
    set: Overrides | None = None,
    slice: SliceName | None = None,
    drawn: bool = False,
    progress: Progress = unheard,
    note: Note = unheard,
    **options: Unpack[WorkloadOptions],
) -> Answer:
    """Say why a network, or one of its layers, takes as long as it does and what would help, as `tpusim explain` does.

    Of a network the layers that cost most are explained, and the whole is simulated anew with each change that may
    help. Of one layer each change is tried on it alone, and what other lowerings cost is said, too.

    Args:
        workload: a name that `tpusim list` shows, a path, FILE.py:FUNCTION of JAX, or what `load_workload` returns.
        hardware: a name, a path, or what `load_hardware` returns; None: tpu_v2.
        layer: the layer that is explained; None: the network, or the layer if there is one alone.
        batch: images at a time.
        lowering: how layers become passes, as for `simulate`.
        set: fields of the machine to change, as for `load_hardware`; and those of the slice, as slice.FIELD.
        slice: the chips that share the network: a name that `tpusim list` shows, a path, or what `load_slice` returns.
        drawn: refuse, before the work, what has no picture: networks, and machines of other families than the TPU.
        progress: called before each step with steps done, all steps, and what is next.
        note: called with what there is to know of the workload and the machine.
        options: those of the workload, where it is given by name: dims, phase, weights, caches, skip_unknown, ops,
            shapes, training, keep, offload, optimizer.

    Raises:
        InputError: with every problem of what is given, or the network cannot be simulated.

    Examples:
        >>> import tpusim
        >>> answer = tpusim.explain("tiny", "tiny_4x4", batch=2)
        >>> [each.found.layer.name for each in answer.found.costly]
        ['two_passes', 'fig11', 'fig10']
        >>> answer.found.most.name, round(answer.found.most.gain, 2)
        ('twice the batch', 1.5)
        >>> tpusim.explain("tiny", "tiny_4x4", layer="fig11", batch=2).found.limit
        'mapping'
    """
    asked = asked_for(workload, hardware, batch, set, model_options(**options), note, slice)
    jobs = resolved(asked.work, asked.machine, lowering, progress=progress)
    check_held(jobs, asked)
    told = [*notes_of(jobs.work, asked.unnamed)]
    for each in told:
        note(each)
    notes = (*asked.notes, *told)
    of_network = layer is None and len(jobs.each) > 1
    if drawn and jobs.family.lanes(jobs.machine) is None:
        raise of_tpus_alone(jobs.machine, "tpusim explain --out")
    if drawn and of_network:
        raise InputError(Problem("a picture is of one layer; name it with --layer, or write FILE.html", "--out"))
    if of_network:
        found = explain_network(asked.work, jobs, lowering, asked.again, progress, asked.place, asked.meshed)
        title = f"Why {jobs.work.name} takes as long as it does on {jobs.hardware.label}"
        rows = [*_rows_of_network(found)]
        return Answer(network_explained(found), rows, found, notes, heading=title, tiles=network_at_a_glance(found))
    return _of_a_layer(jobs, _one_job(jobs, layer), progress, notes)


def _of_a_layer(jobs: Jobs, chosen: Job, progress: Progress, notes: tuple[str, ...]) -> Answer:
    setup = Setup(chosen.layer, chosen.batch, jobs.machine, chosen.lowering)
    steps = len(relaxations(setup))
    total = steps + len(candidates(AUTO, jobs.family))
    found = explain_layer(setup, lambda done, name: progress(done, total, name))
    fit, unfit = alternatives(setup, lambda done, name: progress(steps + done, total, name))
    between = overlapping(jobs, chosen.layer) if setup.is_of_lanes else None
    shown, title = explained(found, jobs.work, between, fit, unfit), f"Why {jobs.work.name} {found.layer.name}"

    def draw() -> Picture:
        # Imported here, because matplotlib takes longer to import than the simulations take.
        from tpusim.report.plots.layer import explained as drawn

        assert isinstance(found, Bottleneck), "only layers of lanes are drawn"
        return drawn(found, jobs.work.name, fit)

    return Answer(shown, [*_rows(found)], found, notes, heading=f"{title} takes as long as it does", draw=draw)


def _one_job(jobs: Jobs, name: str | None) -> Job:
    """Return the job of the layer of that name, or the only one that matches."""
    found = [job for job in jobs.each if job.layer.name == name] or jobs.picked(name or "*").each
    if len(found) > 1:
        names = ", ".join(job.layer.name for job in found[:8]) + (", ..." if len(found) > 8 else "")
        says = f"--layer {name} matches {len(found)} of them: {names}"
        raise InputError(f"one layer at a time is explained, or without --layer the network; {says}")
    return found[0]


def _rows(found: ExplainedLayer) -> Iterator[Row]:
    """Yield the layer as it is, then each change."""
    layer, clock = found.layer, found.layer.time_us / found.layer.cycles
    yield _row(layer.name, "", "", "layer", layer.cycles, clock, 1.0)
    for gain in found.gains:
        yield _row(layer.name, gain.name, gain.how, gain.relaxation.per, gain.cycles, clock, gain.gain)


def _rows_of_network(found: ExplainedNetwork) -> Iterator[Row]:
    """Yield the network as it is and with each change, then the same of each costly layer."""
    name, clock = found.jobs.work.name, found.time_us / found.cycles
    yield _row(name, "", "", "network", found.cycles, clock, 1.0)
    for each in found.gains:
        yield _row(name, each.name, each.how, each.per, each.cycles, clock, each.gain)
    for costly in found.costly:
        yield from _rows(costly.found)


def _row(of: str, change: str, that_is: str, per: str, cycles: int, us_a_cycle: float, gain: float) -> Row:
    made = {"of": of, "change": change, "that_is": that_is, "per": per}
    return {**made, "cycles": cycles, "time_us": cycles * us_a_cycle, "gain": gain}
