"""The action of `tpusim run --tokens`: a generation, token by token."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tpusim.base.errors import InputError, Problem
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import machine_told, tell_unasked
from tpusim.cli.actions.results import write_pictures
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.names import PAGE_FILE
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.need import held_in_hbm
from tpusim.network.formats import ModelOptions
from tpusim.network.template import Template
from tpusim.network.workload import Workload
from tpusim.network.workload_file import images_of, open_workload
from tpusim.report.page.assemble import told_page
from tpusim.report.plots import FORMATS
from tpusim.report.tables.generation import GENERATION_FILE, at_a_glance, generated
from tpusim.result.chips import shared_by
from tpusim.study.generation import CHECKED, generate


def generate_and_report(
    workload: str, hardware: str, batch: int, changes: Sequence[str] | None, asked: ModelOptions, tokens: int,
    lowering: str | None, json: str | None, out: Path | None, unnamed: bool,
) -> None:  # fmt: skip
    """Time `tokens` tokens of each of `batch` sequences: a table, JSON, and in `out` a picture and a page.

    `unnamed`: nobody named the machine.

    Raises InputError: the workload names no size that grows, or what a run raises.
    """
    output, machine, images = JsonOutput(json, made=out), machine_told(hardware, changes), images_of(batch)
    if out is not None:
        probe(out / GENERATION_FILE, make_folder=True)
    document = open_workload(workload, asked)
    template = Template(document, images)
    network = template.work
    if not (grows := network.grows):
        named = ", ".join(name for name, _ in network.sizes) or "it has none"
        says = f"the workload does not say which of its sizes each token adds one to; write grows: with one of: {named}"
        raise InputError(Problem(says, f"--tokens: {document.label}"))
    if unnamed:
        tell_unasked(network)
    # The workload's own size is that of the first token.
    first = dict(network.sizes)[grows]

    def at(context: int) -> Workload:
        return template.at({grows: context})

    # The last token has the largest caches.
    held_in_hbm(at(first + tokens - 1), machine)
    with Meter(min(tokens, CHECKED + 2)) as meter:
        made = generate(at, machine, first, tokens, lowering, meter.show)
    sizes = "".join(f", {name} {size}" for name, size in network.sizes)
    sizes += f", {shared_by(network.chips)}" * (network.chips > 1)
    shown = generated(made, sizes)

    def to_folder(folder: Path) -> None:
        write(folder / GENERATION_FILE, f"{shown.to_json()}\n".encode())
        # Imported here, because matplotlib takes a second to import.
        from tpusim.report.plots.generation import time_of_tokens

        picture = time_of_tokens(made, sizes)
        for path in write_pictures(folder, [picture], FORMATS):
            say(output.words_to, str(path))
        title = f"{made.workload} on {made.machine}"
        write(folder / PAGE_FILE, told_page(title, shown, at_a_glance(made), [picture]))
        say(output.words_to, str(folder / PAGE_FILE))

    output.deliver(shown, *([partial(to_folder, out)] if out is not None else []))
    if asked.phase is None:
        say(sys.stderr, "Note: the sizes of the workload file hold; --phase asks for those of a phase, such as decode")
