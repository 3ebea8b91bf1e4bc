"""A timeline in Perfetto's native format, for https://ui.perfetto.dev and the tools of the perfetto package.

A nanosecond of the trace is a cycle, so that every slice is exact and lengths add up to the cycles of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.base.version import __version__
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import MOST_CHANNELS
from tpusim.machines.tpu.observation.timeline import Slice, Timeline, Watch, unwatched
from tpusim.machines.tpu.observation.timing import unit_name
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.sections import MOST_ARRAYS
from tpusim.report.text import frequency
from tpusim.report.trace.counters import COUNTERS, counters, windows
from tpusim.report.trace.perfetto_packets import Arguments, Packets
from tpusim.result.vocabulary.states import CLIENTS

_TRANSFERS = "Transfers from their start to their last word on the chip or off it; two may be under way at once."
_LAYERS = (
    "Layers, one after another; of those that overlap each from when the array is done with the one ahead, as their "
    "cycles are counted."
)
OF_AN_ARRAY = {
    "preload": "Weights on their way into the array (busy), or why they are not.",
    "stream": "Each pass from its first ifmap read to its last.",
    "systolic_array": "The array takes elements in (busy), or why it does not.",
    "drain": "Each pass from its first result write to its last.",
    "vector_unit": "Busy adding results to partial sums, or with words of its own steps.",
}
"""The tracks that each array has which has weights of its own."""

TRACKS = {
    "hbm": "The HBM bus: busy with transfers, blocked by steps they wait for, or kept back by a port that was taken.",
    **{
        f"hbm_channel_{number}": f"Channel {number} of the DRAM: of each transfer, from the first burst accepted "
        "to the last one done."
        for number in range(MOST_CHANNELS)
    },
    "scratch_memory": "The bus between the scratch memory and the lanes, likewise.",
    "dma_0": _TRANSFERS,
    "dma_1": _TRANSFERS,
    **{
        unit_name(name, array): f"{about} Of array {array}, which has weights of its own." if array else about
        for array in range(MOST_ARRAYS)
        for name, about in OF_AN_ARRAY.items()
    },
    "vector": "Each step of the vector unit by itself, from its first operand read to its last result write.",
    "port": "Who owns each cycle of the memory port of lane 0, slots that padding leaves unused included.",
    **{f"port_{key}": f"The port of lane 0 for {each.label} alone." for key, each in CLIENTS.items() if key != "idle"},
}
"""What each track shows, in the order shown; a machine has either `port` or the others."""

_MOST_WINDOWS = 1000


class Span(NamedTuple):
    """A layer's share of the time: cycles [first, stop) of those of its Program; and what it reads, where known."""

    name: str
    first: int
    stop: int
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A Program on the time axis of a trace, of a layer or of several that overlap: its cycle 0 is cycle `at`."""

    at: int
    program: Program
    timeline: Timeline
    layers: tuple[Span, ...]

    @property
    def stop(self) -> int:
        """The cycle after its last."""
        return self.at + self.timeline.cycles


def perfetto(
    title: str, placed: Sequence[Placed], hardware: Hardware, first: int, stop: int, watch: Watch = unwatched
) -> bytes:
    """The file's contents: what Programs, one after another, do in cycles [first, stop), which cover part of each.

    `watch` is told how many layers are written.
    """
    packets = Packets()
    time = f"1 ns here is 1 cycle ({1e9 / hardware.clock_hz:.4g} ns at {frequency(hardware.clock_hz)})"
    root = packets.track(f"{title}: {time}", f"tpusim {__version__}, seen from lane 0. {time}.")
    layer_track = packets.track("layer", _LAYERS, root)
    known = {name for each in placed for name in each.timeline.tracks}
    tracks = {name: packets.track(name, about, root) for name, about in TRACKS.items() if name in known}
    window = max(1, -(-(stop - first) // _MOST_WINDOWS))
    series = {
        name: packets.track(name, about.format(window=window), root, unit) for name, (unit, about) in COUNTERS.items()
    }
    done = 0
    for each in placed:
        watch(done)
        start, end = max(first, each.at) - each.at, min(stop, each.stop) - each.at
        packets.slices(layer_track, _clipped(each.layers, start, end), [*map(_told, each.layers)], each.at)
        arguments = _arguments(each.program, each.layers)
        for name, track in each.timeline.clipped(start, end).tracks.items():
            packets.slices(tracks[name], track, arguments, each.at)
        edges = windows(start, end, window)
        for name, (cycles, values) in counters(each.program, each.timeline, hardware, edges).items():
            packets.values(series[name], zip((cycles + each.at).tolist(), values.tolist(), strict=True))
        done += len(each.layers)
    for counter in series.values():
        packets.values(counter, [(stop, 0.0)])
    return packets.to_bytes()


def _clipped(layers: Sequence[Span], first: int, stop: int) -> Iterator[Slice]:
    for number, layer in enumerate(layers):
        if layer.first < stop and layer.stop > first:
            yield Slice(max(first, layer.first), min(stop, layer.stop), layer.name, number)


def _told(layer: Span) -> Arguments:
    """What is told of a layer: its cycles, and what it reads where that is known."""
    reads = {"reads": ", ".join(layer.reads)} if layer.reads else {}
    return {"cycles": layer.stop - layer.first, **reads}


def _arguments(program: Program, layers: Sequence[Span]) -> list[Arguments]:
    """What is told of each step, passes numbered from 0; of several layers also whose it is."""
    numbers = {index: {"pass": number} for index, number in program.passes.items()}
    whose = [{"layer": layers[number].name} for number in program.layers] or [{} for _ in program.steps]
    told = enumerate(zip(program.steps, whose, strict=True))
    return [{**layer, **numbers.get(index, {}), **step.facts} for index, (step, layer) in told]
