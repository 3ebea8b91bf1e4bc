"""`tpusim run --tokens`: a generation, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from tpusim.api.answer import Answer, Row
from tpusim.api.asked import (
    MachineName,
    Note,
    Progress,
    WorkloadName,
    WorkloadOptions,
    machine_for,
    model_options,
    unasked,
)
from tpusim.base.errors import InputError, Problem
from tpusim.flow.hbm_need import held_in_hbm
from tpusim.input.document import Document
from tpusim.input.scalars import whole_number
from tpusim.machines.family import Machine
from tpusim.machines.lowered import unheard
from tpusim.network.blocks import repeated
from tpusim.network.template import Template
from tpusim.network.workload import Workload, with_sizes
from tpusim.network.workload_file import DECODE, PREFILL, described, images_of, in_phase, open_workload, workload_of
from tpusim.report.tables.generation import at_a_glance, generated
from tpusim.result.chips import shared_by
from tpusim.study.generation import CHECKED, Generation
from tpusim.study.generation import generate as timed

if TYPE_CHECKING:
    from tpusim.input.form import Overrides
    from tpusim.report.plots.figure import Picture

MOST_TOKENS = 2**20
"""Most tokens of a generation, and of a prompt."""
_WITH_PROMPT = 2
"""Fewest tokens beside a prompt: the first is the prompt's."""


def generate(
    workload: WorkloadName,
    hardware: MachineName | Machine | None = None,
    *,
    tokens: int,
    prompt: int | None = None,
    batch: int = 1,
    lowering: str | None = None,
    set: Overrides | None = None,
    progress: Progress = unheard,
    note: Note = unheard,
    **options: Unpack[WorkloadOptions],
) -> Answer:
    """Time tokens that a language model makes one after another, as `tpusim run --tokens` does.

    Args:
        workload: a name that `tpusim list` shows, or the path of a workload that says which size each token adds one
            to.
        hardware: a TPU: a name, a path, or what `load_hardware` returns; None: tpu_v2.
        tokens: tokens of each sequence.
        prompt: tokens that are read ahead of them, and make the first of them; without it a workload may need a phase
            in which each token is read alone, such as decode.
        batch: sequences.
        lowering: how layers become passes, as for `simulate`.
        set: fields of the machine to change, as for `load_hardware`.
        progress: called before each step with steps done, all steps, and what is next.
        note: called with what there is to know of the workload and the machine.
        options: those of the workload: dims, phase, weights, caches.

    Raises:
        InputError: the workload names no size that grows, or what `simulate` raises.

    Examples:
        >>> import tpusim
        >>> answer = tpusim.generate("gpt2_small", "tpu_v6e", tokens=2, prompt=16)
        >>> round(answer.found.first_seconds * 1e6), round(answer.found.tokens_per_second)
        (1368, 2816)
        >>> answer.to_frame()["context_tokens"].tolist()
        [17]
    """
    asked, images, notes = model_options(**options), images_of(batch), list[str]()

    def tell(text: str) -> None:
        notes.append(text)
        note(text)

    for key, value in (("tokens", tokens), ("prompt", prompt)):
        if value is not None:
            try:
                whole_number(value, 1, MOST_TOKENS)
            except InputError as error:
                raise InputError(Problem(str(error), f"--{key}")) from None
    machine, said = machine_for(hardware, set)
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
    for each in (*said, *document.notes):
        tell(each)
    template = Template(document, images)
    network = template.work
    if not (grows := network.grows):
        named = ", ".join(name for name, _ in network.sizes) or "it has none"
        says = f"the workload does not say which of its sizes each token adds one to; write grows: with one of: {named}"
        raise InputError(Problem(says, f"--tokens: {document.label}"))
    if network.mesh:
        says = "a generation is timed on one chip; time a token of several with --phase decode, or leave the mesh out"
        raise InputError(Problem(says, "--mesh"))
    if hardware is None and (text := unasked(network)):
        tell(text)
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
    steps = min(tokens, CHECKED + 2)
    made = timed(at, machine, first, tokens, lowering, lambda done, what: progress(done, steps, what), read)
    sizes = "".join(f", {name} {size}" for name, size in (read or network).sizes)
    sizes += f", {shared_by(network.chips)}" * (network.chips > 1)
    if asked.phase is None and prompt is None:
        tell("the sizes of the workload file hold; --phase asks for those of a phase, such as decode")

    def draw() -> Picture:
        # Imported here, because matplotlib takes a second to import.
        from tpusim.report.plots.generation import time_of_tokens

        return time_of_tokens(made, sizes)

    shown, title = generated(made, sizes), f"{made.workload} on {made.machine}"
    return Answer(shown, [*_rows(made)], made, tuple(notes), heading=title, tiles=at_a_glance(made), draw=draw)


def _in_phase(document: Document, phase: str, dims: Mapping[str, int]) -> Document:
    """Return the document in a phase, with the sizes that are asked for. Raises InputError where there is none."""
    return repeated(with_sizes(in_phase(document, phase), dims))


def _rows(made: Generation) -> Iterator[Row]:
    """Yield a row a token; bytes are told of simulated ones alone."""
    for token in made.tokens:
        yield {
            "context_tokens": token.context,
            "simulated": token.simulated,
            "cycles": token.cycles,
            "time_us": 1e6 * token.cycles / made.clock_hz,
            "tokens_per_s": made.batch * made.clock_hz / token.cycles,
            "hbm_bytes": token.hbm_bytes if token.simulated else None,
        }
