"""What `tpusim area` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TextIO

from tpusim.cli.json_output import JsonOutput
from tpusim.cli.terminal import deliver, show, terminal_width
from tpusim.flow.steps import tpu_only
from tpusim.machines.family import load_hardware
from tpusim.machines.tpu.description import Hardware
from tpusim.report.tables import area as tables


def account_and_report(hardware: str, changes: Sequence[str], json: str | None) -> None:
    """Show what each part of a machine takes of a chip, as JSON and in tables. Raises InputError."""
    machine = tpu_only(load_hardware(hardware, changes), "tpusim area")
    output = JsonOutput(json)
    deliver(partial(output.put, tables.to_json(machine)), partial(_report, machine, output.words_to))


def _report(machine: Hardware, stream: TextIO) -> None:
    room = terminal_width(stream)
    width = min(tables.WIDTH, room or tables.WIDTH)
    show(
        stream, tables.heading(machine, width), "", tables.part_table(machine, room), "", tables.part_legend(width), ""
    )
    show(stream, tables.beside(machine, width), "", tables.word_heading(machine, width), "")
    show(stream, tables.word_table(machine, room), "", tables.word_legend(width))
