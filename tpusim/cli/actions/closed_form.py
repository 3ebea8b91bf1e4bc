"""The action of `tpusim compare --closed-form`."""

from __future__ import annotations

from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.flow.jobs import Jobs
from tpusim.report.tables.closed_form import forms_compared
from tpusim.study.closed_form import array_of, compare_with_forms


def compare_forms_and_report(jobs: Jobs, json: str | None) -> None:
    """Time a network beside closed forms of other simulators, as JSON and in words."""
    array_of(jobs.machine)
    output, done = JsonOutput(json), [job.layer.name for job in jobs.each]
    with Meter(len(done)) as meter:
        found = compare_with_forms(jobs, lambda layer, doing: meter.show(done.index(layer), f"{layer}: {doing}"))
    output.deliver(forms_compared(found))
