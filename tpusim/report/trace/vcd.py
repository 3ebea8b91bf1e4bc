"""A trace as a Value Change Dump, for GTKWave and other viewers of waveforms."""

from __future__ import annotations

import io
from collections.abc import Sequence

from vcd import VCDWriter

from tpusim.base.version import __version__
from tpusim.machines.tpu.observation.timeline import ACCESSES, MOVING, WORKING, Cycle


def vcd(cycles: Sequence[Cycle], title: str) -> bytes:
    """The file's contents; `cycles` are consecutive. A unit of time is a cycle.

    Strings `port.lane_0`, ... hold words of ACCESSES, the integers `array.pes` and `array.weights` what Cycle tells.
    """
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
    """A comment is ASCII, and ends at the first `$end`."""
    return " ".join(text.replace("$", "_").encode("ascii", "replace").decode().split())
