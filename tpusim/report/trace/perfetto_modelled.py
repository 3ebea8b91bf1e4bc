"""A timeline of a machine of any family in Perfetto's native format: a nanosecond of the trace is a cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpusim.base.version import __version__
from tpusim.machines.family import Slot
from tpusim.machines.tpu.observation.timeline import Slice
from tpusim.report.text import frequency
from tpusim.report.trace.perfetto_packets import Packets


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A layer on the time axis of a trace: its cycle 0 is cycle `at`."""

    name: str
    at: int
    cycles: int
    slots: Mapping[str, Sequence[Slot]]


def perfetto(title: str, layers: Sequence[Placed], clock_hz: int, first: int, stop: int) -> bytes:
    """The file's contents: what `layers` do in cycles [first, stop), track by track."""
    packets = Packets()
    time = f"1 ns here is 1 cycle ({1e9 / clock_hz:.4g} ns at {frequency(clock_hz)})"
    root = packets.track(f"{title}: {time}", f"tpusim {__version__}. {time}.")
    layer_track = packets.track("layer", "Layers, one after another.", root)
    known = dict.fromkeys(name for layer in layers for name in layer.slots)
    tracks = {name: packets.track(name, "", root) for name in known}
    for layer in layers:
        start, end = max(first, layer.at), min(stop, layer.at + layer.cycles)
        packets.slices(layer_track, [Slice(start, end, layer.name, 0)], [{"cycles": layer.cycles}], 0)
        for name, slots in layer.slots.items():
            packets.slices(tracks[name], clipped(slots, start - layer.at, end - layer.at), [], layer.at)
    return packets.to_bytes()


def clipped(slots: Sequence[Slot], first: int, stop: int) -> list[Slice]:
    """What lies in cycles [first, stop); what reaches across the edges is cut."""
    cut = ((max(start, first), min(end, stop), name) for start, end, name in slots)
    return [Slice(start, end, name, -1) for start, end, name in cut if start < end]
