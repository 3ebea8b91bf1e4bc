"""The action of `tpusim run --tokens`: a generation, token by token."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from tpusim.input.document import Document
from tpusim.network.blocks import repeated
from tpusim.network.formats import ModelOptions
from tpusim.network.template import Template
from tpusim.network.workload import Workload, with_sizes
from tpusim.network.workload_file import described, images_of, in_phase, open_workload, workload_of
from tpusim.report.page.assemble import told_page
from tpusim.report.plots import FORMATS
from tpusim.report.tables.generation import GENERATION_FILE, at_a_glance, generated
from tpusim.result.chips import shared_by
from tpusim.study.generation import CHECKED, generate

PREFILL, DECODE = "prefill", "decode"
"""The phases of a file in which a prompt is read, and in which tokens are made."""
_WITH_PROMPT = 2
"""Fewest tokens beside a prompt: the first is the prompt's."""


def generate_and_report(
    workload: str, hardware: str, batch: int, changes: Sequence[str] | None, asked: ModelOptions, tokens: int,
    lowering: str | None, json: str | None, out: Path | None, unnamed: bool, prompt: int | None = None,
) -> None:  # fmt: skip
    """Time `tokens` tokens of each of `batch` sequences: a table, JSON, and in `out` a picture and a page.

    With a number of tokens of a `prompt`, the first token is the one that the prompt makes. `unnamed`: nobody
    named the machine.

    Raises InputError: the workload names no size that grows, or what a run raises.
    """
    output, machine, images = JsonOutput(json, made=out), machine_told(hardware, changes), images_of(batch)
    if out is not None:
        probe(out / GENERATION_FILE, make_folder=True)
    if prompt is not None:
        if tokens < _WITH_PROMPT:
            says = "the prompt makes the first token; ask for 2 at least, or time the prompt alone with --phase prefill"
            raise InputError(Problem(says, f"--tokens {tokens}"))
        if asked.phase not in (None, DECODE):
            says = f"--prompt reads in {PREFILL}, and makes tokens in {DECODE}; leave --phase out"
            raise InputError(Problem(says, f"--phase {asked.phase}"))
        # Read once, as it may come from standard input.
        whole = described(workload, replace(asked, phase=None))
        document = _in_phase(whole, DECODE, asked.dims)
    else:
        document = open_workload(workload, asked)
    say(sys.stderr, *(f"Note: {note}" for note in document.notes))
    template = Template(document, images)
    network = template.work
    if not (grows := network.grows):
        named = ", ".join(name for name, _ in network.sizes) or "it has none"
        says = f"the workload does not say which of its sizes each token adds one to; write grows: with one of: {named}"
        raise InputError(Problem(says, f"--tokens: {document.label}"))
    if unnamed:
        tell_unasked(network)
    # The workload's own size is that of the first token, unless a prompt is ahead of it.
    first, read = dict(network.sizes)[grows], None
    if prompt is not None:
        if grows in asked.dims:
            raise InputError(Problem(f"--prompt {prompt} says it; leave one of them out", f"--dim {grows}={first}"))
        read = workload_of(_in_phase(whole, PREFILL, {**asked.dims, grows: prompt}), images)
        first, tokens = prompt + 1, tokens - 1
        held_in_hbm(read, machine)

    def at(context: int) -> Workload:
        return template.at({grows: context})

    # The last token has the largest caches.
    held_in_hbm(at(first + tokens - 1), machine)
    with Meter(min(tokens, CHECKED + 2)) as meter:
        made = generate(at, machine, first, tokens, lowering, meter.show, read)
    sizes = "".join(f", {name} {size}" for name, size in (read or network).sizes)
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
    if asked.phase is None and prompt is None:
        say(sys.stderr, "Note: the sizes of the workload file hold; --phase asks for those of a phase, such as decode")


def _in_phase(document: Document, phase: str, dims: Mapping[str, int]) -> Document:
    """Return the document in a phase, with the sizes that are asked for. Raises InputError where there is none."""
    return repeated(with_sizes(in_phase(document, phase), dims))
