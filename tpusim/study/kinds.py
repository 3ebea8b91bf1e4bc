"""Layers of several networks on one machine, of which each kind is simulated once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tpusim.flow.jobs import Jobs
from tpusim.flow.simulation import run
from tpusim.machines.lowered import LayerWatch, unheard
from tpusim.result.records import LayerResult

KnownKinds = dict[Hashable, LayerResult]
"""Layers that were simulated, by kind and batch, each with the names of the first of its kind."""


def layers_of(jobs: Jobs, known: KnownKinds, watch: LayerWatch = unheard) -> Sequence[LayerResult]:
    """Return the layers of jobs, timing alone; those of a known kind are not simulated again, unless layers overlap."""
    if jobs.family.overlaps(jobs.machine):
        return run(jobs, check=False, watch=watch).layers
    found = []
    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        # Chips have batches of their own, of which the kind says nothing.
        key = kind, job.batch
        if key not in known:
            with job.placed():
                (known[key],) = run(job.alone(jobs.hardware, jobs.dtype), check=False, watch=watch).layers
        found.append(known[key])
    return found
