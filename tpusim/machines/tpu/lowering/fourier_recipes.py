"""The discrete Fourier transform of real numbers as flow graphs: split radix, by conjugate pairs.

Of x0 ... x(N-1) it makes the sums a(u) = sum of x(t) exp(2 pi i u t / N), of which u = 0 ... N/2 tell all: real parts
are sums of cosines, imaginary ones of sines. That takes 2 N log2 N - 4 N + 6 operations, multiplications and additions
together: H. Sorensen, D. Jones, M. Heideman and C. Burrus, "Real-Valued Fast Fourier Transform Algorithms" (IEEE
Transactions on Acoustics, Speech, and Signal Processing 35, 1987). Conjugate pairs: I. Kamar and Y. Elcherif (1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin, sqrt
from typing import NamedTuple

from tpusim.machines.tpu.lowering.flow_graph import FlowGraph


class Wave(NamedTuple):
    """a(u): the names of its real part and of its imaginary part; the latter of 0 and N/2 is nothing."""

    real: str
    imaginary: str = ""


def real_transform(length: int) -> FlowGraph:
    """That of `length` real numbers, a power of two from 2 on: real parts of 0 and N/2, then both of each between."""
    graph = FlowGraph()
    waves = _waves(graph, [f"x{at}" for at in range(length)])
    between = (part for wave in waves[1:-1] for part in wave)
    graph.outputs = [waves[0].real, waves[-1].real, *between]
    return graph


def _waves(graph: FlowGraph, given: Sequence[str]) -> list[Wave]:
    """From 0 to half their number."""
    length = len(given)
    if length == 1:
        return [Wave(given[0])]
    if length == 2:
        return [Wave(graph.sum((given[0], 1), (given[1], 1))), Wave(graph.sum((given[0], 1), (given[1], -1)))]
    even, quarter = _waves(graph, given[::2]), length // 4
    ahead, behind = _waves(graph, given[1::4]), _waves(graph, [given[4 * at - 1] for at in range(quarter)])
    waves = _first(graph, even[0], even[quarter], ahead[0], behind[0], quarter)
    if length > 4:
        waves.update(_middle(graph, even[length // 8], ahead[-1], behind[-1], quarter))
    for at in range(1, length // 8):
        waves.update(_four(graph, at, length, even, ahead[at], behind[at]))
    return [waves[at] for at in range(length // 2 + 1)]


def _first(graph: FlowGraph, even: Wave, quarter_even: Wave, one: Wave, other: Wave, quarter: int) -> dict[int, Wave]:
    """Those of 0, N/4 and N/2: nothing is turned."""
    both = graph.sum((one.real, 1), (other.real, 1))
    apart = graph.sum((one.real, 1), (other.real, -1))
    return {
        0: Wave(graph.sum((even.real, 1), (both, 1))),
        2 * quarter: Wave(graph.sum((even.real, 1), (both, -1))),
        quarter: Wave(quarter_even.real, apart),
    }


def _middle(graph: FlowGraph, even: Wave, one: Wave, other: Wave, quarter: int) -> dict[int, Wave]:
    """Those of N/8 and 3N/8: real numbers are turned by an eighth, one way and the other."""
    half = sqrt(0.5)
    real = graph.sum((graph.sum((one.real, 1), (other.real, 1)), half))
    imaginary = graph.sum((graph.sum((one.real, 1), (other.real, -1)), half))
    return dict(zip((quarter // 2, 3 * quarter // 2), _sum_and_mirror(graph, even, Wave(real, imaginary)), strict=True))


def _four(graph: FlowGraph, at: int, length: int, even: Sequence[Wave], ahead: Wave, behind: Wave) -> dict[int, Wave]:
    """Those of u, N/4 - u, N/4 + u and N/2 - u."""
    quarter, angle = length // 4, 2 * pi * at / length
    one, other = _turned(graph, ahead, angle), _turned(graph, behind, -angle)
    both, apart = (Wave(*(graph.sum((a, 1), (b, sign)) for a, b in zip(one, other, strict=True))) for sign in (1, -1))
    first, last = _sum_and_mirror(graph, even[at], both)
    far = even[quarter - at]
    below = Wave(graph.sum((far.real, 1), (apart.imaginary, 1)), graph.sum((far.imaginary, 1), (apart.real, 1)))
    above = Wave(graph.sum((far.real, 1), (apart.imaginary, -1)), graph.sum((apart.real, 1), (far.imaginary, -1)))
    return {at: first, 2 * quarter - at: last, quarter - at: below, quarter + at: above}


def _turned(graph: FlowGraph, wave: Wave, angle: float) -> Wave:
    """Times exp(i angle)."""
    c, s = cos(angle), sin(angle)
    real, imaginary = wave
    return Wave(graph.sum((real, c), (imaginary, -s)), graph.sum((real, s), (imaginary, c)))


def _sum_and_mirror(graph: FlowGraph, even: Wave, odd: Wave) -> tuple[Wave, Wave]:
    """Two waves: the sum of both is that of u, their difference, conjugated, that of N/2 - u."""
    ahead = Wave(graph.sum((even.real, 1), (odd.real, 1)), graph.sum((even.imaginary, 1), (odd.imaginary, 1)))
    behind = Wave(graph.sum((even.real, 1), (odd.real, -1)), graph.sum((odd.imaginary, 1), (even.imaginary, -1)))
    return ahead, behind
