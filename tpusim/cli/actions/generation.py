"""The action of `tpusim run --tokens`: a generation, token by token."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.need import check_hbm
from tpusim.machines.family import load_hardware
from tpusim.network.formats import ModelOptions
from tpusim.network.workload import Workload, sizes_named, with_sizes
from tpusim.network.workload_file import images_of, open_workload, workload_of
from tpusim.report.tables.generation import generated
from tpusim.study.generation import CHECKED, generate

GROWS = "grows"
"""The key of a workload file that names the size that each token adds one to."""


def generate_and_report(
    workload: str, hardware: str, batch: int, changes: Sequence[str] | None, asked: ModelOptions, tokens: int,
    lowering: str | None, json: str | None,
) -> None:  # fmt: skip
    """Time `tokens` tokens of each of `batch` sequences, as a table and as JSON.

    Raises InputError: the workload names no size that grows, or what a run raises.
    """
    output, machine, images = JsonOutput(json), load_hardware(hardware, changes or []), images_of(batch)
    document = open_workload(workload, asked)
    grows, named = document.value(GROWS), sizes_named(document)
    if grows not in named:
        hint = did_you_mean(str(grows), named) or ";" if grows else ";"
        says = f"the workload does not say which of its sizes each token adds one to{hint}"
        also = f"write {GROWS}: with one of them: {', '.join(named) or 'it has none'}"
        raise InputError(Problem(f"{says} {also}", f"--tokens: {document.label}"))
    # The workload's own size is that of the first token.
    first = dict(workload_of(document, images).sizes)[str(grows)]

    def at(context: int) -> Workload:
        return workload_of(with_sizes(document, {str(grows): context}), images)

    # The last token has the largest caches.
    check_hbm(at(first + tokens - 1), machine)
    with Meter(min(tokens, CHECKED + 2)) as meter:
        made = generate(at, machine, first, tokens, lowering, meter.show)
    sizes = "".join(f", {name} {size}" for name, size in at(first).sizes)
    output.deliver(generated(made, sizes))
    if asked.phase is None:
        say(sys.stderr, "Note: the sizes of the workload file hold; --phase asks for those of a phase, such as decode")
