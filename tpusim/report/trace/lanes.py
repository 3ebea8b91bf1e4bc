"""A trace of every lane in every cycle, as text and as waveforms; and how much of a trace each form can hold."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tpusim.base.version import __version__
from tpusim.machines.lowered import LaneCycle
from tpusim.report.text import folded
from tpusim.result.vocabulary.states import ACCESSES, MOVING, WORKING

# ---- text: a line for every cycle, a letter for every lane


_WORDS = [f"{letter} {access.meaning}" for letter, access in ACCESSES.items() if access.meaning]
LEGEND = tuple(
    line
    for words in (f"lanes: {', '.join(_WORDS)}.", f"PEs: {WORKING}.", f"weights: {MOVING}.")
    for line in folded([words], indent="       ").splitlines()
)


def lines(cycles: Iterable[LaneCycle]) -> Iterator[str]:
    """Yield the legend, the heading, and a line for every cycle."""
    cycles = iter(cycles)
    first = next(cycles)
    width = max(len("lanes"), len(first.ports))
    yield from LEGEND
    yield f"{'cycle':>7}  {'lanes':{width}}  {'PEs':>5}  {'weights':>7}"
    for cycle in chain([first], cycles):
        yield f"{cycle.number:7}  {cycle.ports:{width}}  {cycle.working or '.':>5}  {cycle.moving or '.':>7}"


# ---- how much of a trace each form can hold


MOST_CYCLES = 2000
"""Most cycles in a picture; more cannot be told apart."""

DOTS_PER_LANE = 2
"""Least dots for a lane, so that every lane is seen."""

MOST_INCHES = 40.0
"""Largest height of a picture in inches; of thousands of lanes some are then not seen."""

MOST_LANE_CYCLES = 4_000_000
"""Most cycles times lanes in a VCD: some 30 MB."""

MOST_SLICES = 2_000_000
"""Most slices in a Perfetto trace: some 100 MB."""

MOST_JSON_SLICES = 500_000
"""Most slices in a Chrome trace, which repeats every argument: some 100 MB."""

MOST_TIMELINE_CYCLES = 20_000_000
"""Most cycles drawn for a timeline, which take some 25 bytes of memory each."""


# ---- a Value Change Dump, for GTKWave and other viewers of waveforms


def vcd(cycles: Sequence[LaneCycle], title: str) -> bytes:
    """Return the file's contents; `cycles` are consecutive. A unit of time is a cycle.

    Strings `port.lane_0`, ... hold words of ACCESSES, the integers `array.pes` and `array.weights` what a cycle tells.
    """
    # Imported here, as the package is an optional extra.
    from vcd import VCDWriter

    text, first = io.StringIO(), cycles[0]
    comment = f"{title}: 1 ns here is 1 cycle. array.pes: {WORKING}. array.weights: {MOVING}."
    with VCDWriter(
        text,
        timescale="1 ns",
        date="",
        comment=_words(comment),
        version=f"tpusim {__version__}",
        init_timestamp=first.number,
    ) as writer:
        digits = len(str(len(first.ports) - 1))
        lanes = [
            writer.register_var("port", f"lane_{lane:0{digits}}", "string", init=ACCESSES[letter].word)
            for lane, letter in enumerate(first.ports)
        ]
        pes = writer.register_var("array", "pes", "integer", size=32, init=first.working)
        weights = writer.register_var("array", "weights", "integer", size=32, init=first.moving)
        for cycle in cycles[1:]:
            for lane, letter in zip(lanes, cycle.ports, strict=True):
                writer.change(lane, cycle.number, ACCESSES[letter].word)
            writer.change(pes, cycle.number, cycle.working)
            writer.change(weights, cycle.number, cycle.moving)
        writer.close(cycles[-1].number + 1)
    return text.getvalue().encode()


def _words(text: str) -> str:
    """Escape a comment, which is ASCII and ends at the first `$end`."""
    return " ".join(text.replace("$", "_").encode("ascii", "replace").decode().split())
