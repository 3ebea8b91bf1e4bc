"""The action of `tpusim explain`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import AUTO, candidates
from tpusim.machines.family import of_tpus_alone
from tpusim.report.plots import KNOWN
from tpusim.report.tables.explain import explained, explained_elsewhere
from tpusim.study.explain import bottleneck
from tpusim.study.explain.relaxation import Setup, relaxations


def explain_and_report(jobs: Jobs, layer: str | None, json: str | None, out: Path | None) -> None:
    """Find what bounds one layer, as JSON, in words, and of a TPU drawn into `out`."""
    chosen, machine, name = _one_job(jobs, layer), jobs.machine, jobs.work.name
    setup = Setup(chosen.layer, chosen.batch, machine, chosen.lowering)
    if out and not setup.is_of_lanes:
        raise of_tpus_alone(machine, "tpusim explain --out")
    output = JsonOutput(json)
    if out and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in KNOWN)
        raise InputError(f"{out}: a picture is written as {allowed}, not as {out.suffix or 'no suffix'}")
    if out:
        probe(out)
    steps = len(relaxations(setup))
    with Meter(steps + len(candidates(AUTO, jobs.family))) as meter:
        found = (bottleneck.find_bottleneck if setup.is_of_lanes else bottleneck.explain)(setup, meter.show)
        fit, unfit = bottleneck.alternatives(setup, lambda done, name: meter.show(steps + done, name))
        between = bottleneck.overlapping(jobs, chosen.layer) if setup.is_of_lanes else None
    if not isinstance(found, bottleneck.Bottleneck):
        output.deliver(explained_elsewhere(found, name, fit, unfit))
        return
    draw = [partial(_draw, found, fit, name, out, output.words_to)] if out else []
    output.deliver(explained(found, jobs.work, between, fit, unfit), *draw)


def _one_job(jobs: Jobs, name: str | None) -> Job:
    """Return the job of the layer of that name, or the only one that matches."""
    found = [job for job in jobs.each if job.layer.name == name] or jobs.picked(name or "*").each
    if len(found) > 1:
        which = f"--layer {name} matches {len(found)} of them" if name else "name one with --layer"
        names = ", ".join(job.layer.name for job in found[:8]) + (", ..." if len(found) > 8 else "")
        raise InputError(f"one layer at a time is explained; {jobs.work.name} has {len(jobs.each)}, {which}: {names}")
    return found[0]


def _draw(
    found: bottleneck.Bottleneck, fit: Sequence[bottleneck.Alternative], workload: str, out: Path, stream: TextIO
) -> None:
    # Imported here, because matplotlib takes longer to import than the simulations take.
    from tpusim.report.plots.layer import explained

    ((_, contents),) = explained(found, workload, fit).files([out.suffix[1:]])
    write(out, contents)
    say(stream, "", str(out))
