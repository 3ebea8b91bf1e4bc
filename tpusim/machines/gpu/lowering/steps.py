"""The k-steps of a sum over taps and channels, in either order."""

from __future__ import annotations

from tpusim.machines.gpu.program.kernels import KStep, Run


def padded(taps: int, channels: int, size: int, channels_outside: bool) -> tuple[KStep, ...]:
    """Every tap begins a k-step of `size` channels: the rest of its last one is zeros."""
    slabs = [(first, min(size, channels - first)) for first in range(0, channels, size)]
    if channels_outside:
        return tuple((Run(tap, *slab),) for slab in slabs for tap in range(taps))
    return tuple((Run(tap, *slab),) for tap in range(taps) for slab in slabs)


def compact(taps: int, channels: int, size: int) -> tuple[KStep, ...]:
    """Taps follow one another without a gap: a k-step may hold the channels of several."""
    rows = taps * channels
    return tuple(_between(first, min(first + size, rows), channels) for first in range(0, rows, size))


def _between(first: int, stop: int, channels: int) -> KStep:
    runs, at = [], first
    while at < stop:
        tap, channel = divmod(at, channels)
        count = min(channels - channel, stop - at)
        runs.append(Run(tap, channel, count))
        at += count
    return tuple(runs)
