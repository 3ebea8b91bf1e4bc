"""What `tpusim dram` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError, did_you_mean
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import deliver, show, terminal_width
from tpusim.memory.dram.device import load_device
from tpusim.memory.dram.replay import ENGINES, Replay, replay
from tpusim.memory.dram.trace import read_trace
from tpusim.report.tables import dram as tables
from tpusim.report.text import document


def play_and_report(path: Path, name: str, changes: Sequence[str], engine: str, json: str | None) -> None:
    """Play a trace on a device, and report what came of it: as JSON, and in a table."""
    if engine not in ENGINES:
        raise InputError(f"--engine: no {engine!r}{did_you_mean(engine, ENGINES) or ';'} write {', '.join(ENGINES)}")
    device = load_device(name, changes)
    output = JsonOutput(json)
    with Meter(2) as meter:
        meter.show(0, f"reading {path.name}")
        trace = read_trace(path, device.organisation.burst_bytes)
        result = replay(trace, device, engine, partial(meter.show, 1))
    beyond = tables.beyond(trace, device)
    deliver(partial(output.put, document(**result.to_dict())), partial(_report, result, beyond, output.words_to))


def _report(result: Replay, beyond: str, stream: TextIO) -> None:
    width = terminal_width(stream)
    show(
        stream,
        tables.heading(result),
        *filter(None, [beyond]),
        "",
        tables.channel_table(result, width),
        "",
        tables.channel_legend(result, width),
    )
