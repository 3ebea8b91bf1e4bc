"""Convolution by the discrete Fourier transform, tile by tile, for large kernels: overlap-save.

A tile of N x N elements gives N - taps + 1 outputs each way. Real transforms along both axes leave sums of cosines and
sines: cc, cs, sc and ss of each pair of frequencies. The spectrum a, of exp(i (u y + v x)), has as many numbers: of (u,
v) it is (cc - ss) + i (cs + sc), of (u, -v) it is (cc + ss) + i (sc - cs); frequencies 0 and N/2 have no sines. Others
follow by symmetry, as data are real. The spectrum of the outputs is a times the conjugate of the filter's, and the way
back is the same way transposed: A. Oppenheim and R. Schafer, "Discrete-Time Signal Processing", chapter 8; M. Mathieu,
M. Henaff and Y. LeCun, "Fast Training of Convolutional Networks through FFTs" (2013).

A complex product is four real ones: weights Re(h) meet (Re(a), Im(a)), weights Im(h) meet (-Im(a), Re(a)).

Transforms are flow graphs: split radix, by conjugate pairs. Of x0 ... x(N-1) they make the sums a(u) = sum of x(t)
exp(2 pi i u t / N), of which u = 0 ... N/2 tell all: real parts are sums of cosines, imaginary ones of sines. They take
2 N log2 N - 4 N + 6 operations, multiplications and additions together: H. Sorensen, D. Jones, M. Heideman and C.
Burrus, "Real-Valued Fast Fourier Transform Algorithms" (IEEE Transactions on Acoustics, Speech, and Signal Processing
35, 1987). Conjugate pairs: I. Kamar and Y. Elcherif (1989).

Linear transforms as graphs of sums, and recipes made of them: transposed, with sums run together, given places.

Bounds of what floating point may lose in them hold whatever the numbers and the order of sums: a sum of n terms, each a
product with a rounded factor, is off by at most g(n + 1) times the sum of their sizes, where g is the gamma of
numerics/equality.py, of float64; what terms were off by before comes to that, times their factors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from math import cos, pi, sin, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.tiles.tile_algorithm import (
    AxisTransform,
    Factors,
    Line,
    Mix,
    Recipe,
    TileAlgorithm,
    TilePlaces,
    TileProduct,
)
from tpusim.machines.tpu.tiles.tile_lowering import in_tiles, refused
from tpusim.network.ops.array_op import Conv2d
from tpusim.numerics.element_types import EXACT_FLOAT32
from tpusim.numerics.equality import DOUBLE, gamma

Sums = dict[str, dict[str, float]]
"""Sums by the names of their terms; inputs are x0, x1, ..."""
Spectra = NDArray[np.float64]


@dataclass
class FlowGraph:
    """Sums in the order in which they are worked out, and the sums that are asked for."""

    sums: Sums = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def sum(self, *terms: tuple[str, float]) -> str:
        """A new sum of factors times named terms; an existing name if nothing needs to be worked out."""
        factors: dict[str, float] = defaultdict(float)
        for name, factor in terms:
            factors[name] += factor
        if [*factors.values()] == [1]:
            return terms[0][0]
        made = f"v{len(self.sums)}"
        self.sums[made] = dict(factors)
        return made

    def transposed(self, wanted: int) -> FlowGraph:
        """The transposed transform, with the first outputs `wanted`: every edge is reversed.

        It has as many multiplications and as many additions, except those that only other outputs need (H. Kahn's
        transposition of signal flow graphs; A. Oppenheim and R. Schafer, "Discrete-Time Signal Processing").
        """
        users: dict[str, list[tuple[str, float]]] = defaultdict(list)
        asked = {f"x{at}" for at in range(wanted)}
        order: dict[str, None] = {}
        for made, factors in self.sums.items():
            if asked & factors.keys():
                asked.add(made)
            for name, factor in factors.items():
                users[name].append((made, factor))
            order.update(dict.fromkeys((*factors, made)))
        given, value, other = {name: f"x{at}" for at, name in enumerate(self.outputs)}, dict[str, str](), FlowGraph()
        # Reversed edges turn the last value into the first, so values are made from the back.
        for name in reversed([each for each in order if each in asked]):
            own = [(given[name], 1.0)] if name in given else []
            value[name] = other.sum(*own, *((value[user], factor) for user, factor in users[name]))
        other.outputs = [value[f"x{at}"] for at in range(wanted)]
        return other

    def run_together(self) -> FlowGraph:
        """A graph with fewer words read and written, for more operations: nested sums are written out where that saves
        words.
        """
        sums: Sums = {made: dict(factors) for made, factors in self.sums.items()}
        for name in [*sums]:
            users = [made for made, factors in sums.items() if name in factors]
            merged = {made: _merged(sums[made], name, sums[name]) for made in users}
            # Words read by the users and by the sum itself, and the word it writes.
            before = sum(len(sums[made]) for made in users) + len(sums[name]) + 1
            if name not in self.outputs and sum(map(len, merged.values())) < before:
                sums.update(merged)
                del sums[name]
        return FlowGraph(sums, self.outputs)

    def recipe(self, over_inputs: bool = False) -> Recipe:
        """Lines of the graph as a recipe.

        A temporary sum takes the place of a later output, or, if inputs may be overwritten (`over_inputs`), of an input
        that is no longer needed. Otherwise inputs are kept, and outputs are final once written.
        """
        sums = _in_turn(self.sums)
        made_at = {name: at for at, name in enumerate(sums)}
        last_used = {name: at for at, factors in enumerate(sums.values()) for name in factors}
        place = {name: f"y{at}" for at, name in enumerate(self.outputs)}
        # The place of an output is free for temporary sums until the output itself is written.
        due = {} if over_inputs else {place[name]: made_at[name] for name in self.outputs}
        free_from = dict.fromkeys(due, 0)
        if over_inputs:
            free_from = {name: at for name, at in last_used.items() if name[0] == "x"}
        for name, at in made_at.items():
            if name not in place:
                place[name] = _free(free_from, due, at, last_used[name])
                free_from[place[name]] = last_used[name]
        return Recipe(
            Line(place[name], {place.get(each, each): factor for each, factor in factors.items()})
            for name, factors in sums.items()
        )


def _in_turn(sums: Sums) -> Sums:
    """Sums in an order that keeps few alive: the next sum is the one most of whose terms are no longer needed."""
    left, found = dict(sums), Sums()
    users: dict[str, set[str]] = defaultdict(set)
    for made, factors in sums.items():
        for name in factors:
            users[name].add(made)
    while left:
        # A sum is ready once all of its terms are made.
        ready = (made for made, factors in left.items() if left.keys().isdisjoint(factors))
        best = max(ready, key=lambda made: sum(len(users[name]) == 1 for name in left[made]))
        for name in left[best]:
            users[name].discard(best)
        found[best] = left.pop(best)
    return found


def _free(free_from: Mapping[str, int], due: Mapping[str, int], at: int, until: int) -> str:
    """A place that is free from one line to another."""
    fitting = (name for name, free in free_from.items() if free <= at and due.get(name, until) >= until)
    return next(fitting, f"z{sum(name.startswith('z') for name in free_from)}")


def _merged(factors: Factors, name: str, its: Factors) -> dict[str, float]:
    """A sum with one of its terms written out."""
    made = defaultdict(float, {each: factor for each, factor in factors.items() if each != name})
    for each, factor in its.items():
        made[each] += factors[name] * factor
    return {each: factor for each, factor in made.items() if factor}


# ---- rounding errors

FACTOR = 4
"""Units of rounding by which a factor may be off: a cosine and its angle, both rounded."""
LARGEST_SUM = EXACT_FLOAT32
"""Largest sum of the sizes of an output's products, for the operands of a check."""


class ErrorBound(NamedTuple):
    """A bound of numbers: they are at most `large`, and `off` by at most that much."""

    large: float
    off: float = 0.0


def weighted(terms: Iterable[tuple[ErrorBound, float]]) -> ErrorBound:
    """The bound of a sum of numbers times factors."""
    terms = [*terms]
    large = sum(abs(factor) * bound.large for bound, factor in terms)
    off = sum(abs(factor) * bound.off for bound, factor in terms)
    return ErrorBound(large, off + growth(len(terms)) * (large + off))


def through(recipe: Recipe, given: ErrorBound) -> ErrorBound:
    """The bound of the worst output of a transform."""
    known: dict[str, ErrorBound] = {}
    for line in recipe:
        known[line.made] = weighted((known.get(name, given), factor) for name, factor in line.factors.items())
    outputs = [bound for name, bound in known.items() if name.startswith("y")]
    return ErrorBound(max(each.large for each in outputs), max(each.off for each in outputs))


def products(one: ErrorBound, other: ErrorBound, count: int) -> ErrorBound:
    """The bound of a sum of `count` products."""
    large = count * one.large * other.large
    off = count * (one.off * (other.large + other.off) + other.off * one.large)
    return ErrorBound(large, off + growth(count) * (large + off))


def growth(terms: int) -> float:
    """g of a sum with that number of terms and rounded factors."""
    return gamma(terms + 1 + FACTOR, DOUBLE)


# ---- transforms, spectra and tiles


class Wave(NamedTuple):
    """a(u): the names of its real and imaginary parts; for 0 and N/2 there is no imaginary part."""

    real: str
    imaginary: str = ""


def real_transform(length: int) -> FlowGraph:
    """The transform of `length` real numbers, a power of two: real parts of 0 and N/2, then both parts of each
    frequency between.
    """
    graph = FlowGraph()
    waves = _waves(graph, [f"x{at}" for at in range(length)])
    between = (part for wave in waves[1:-1] for part in wave)
    graph.outputs = [waves[0].real, waves[-1].real, *between]
    return graph


def _waves(graph: FlowGraph, given: Sequence[str]) -> list[Wave]:
    """Waves from frequency 0 to half the number of inputs."""
    length = len(given)
    if length == 1:
        return [Wave(given[0])]
    if length == 2:
        return [Wave(graph.sum((given[0], 1), (given[1], sign))) for sign in (1, -1)]
    even, quarter = _waves(graph, given[::2]), length // 4
    ahead, behind = _waves(graph, given[1::4]), _waves(graph, [given[4 * at - 1] for at in range(quarter)])
    # At 0, N/4 and N/2 the factor is 1, i or -1, so no multiplication is needed.
    both, apart = (graph.sum((ahead[0].real, 1), (behind[0].real, sign)) for sign in (1, -1))
    waves = {
        0: Wave(graph.sum((even[0].real, 1), (both, 1))),
        2 * quarter: Wave(graph.sum((even[0].real, 1), (both, -1))),
        quarter: Wave(even[quarter].real, apart),
    }
    if length > 4:
        # At N/8 and 3N/8 real numbers are turned by an eighth of a circle, in either direction, with one factor for
        # both parts.
        parts = (graph.sum((ahead[-1].real, 1), (behind[-1].real, sign)) for sign in (1, -1))
        turned = Wave(*(graph.sum((part, sqrt(0.5))) for part in parts))
        waves[quarter // 2], waves[3 * quarter // 2] = _sum_and_mirror(graph, even[length // 8], turned)
    for at in range(1, length // 8):
        waves.update(_four(graph, at, length, even, ahead[at], behind[at]))
    return [waves[at] for at in range(length // 2 + 1)]


def _four(graph: FlowGraph, at: int, length: int, even: Sequence[Wave], ahead: Wave, behind: Wave) -> dict[int, Wave]:
    """Waves of u, N/4 - u, N/4 + u and N/2 - u."""
    quarter, angle = length // 4, 2 * pi * at / length
    one, other = _turned(graph, ahead, angle), _turned(graph, behind, -angle)
    both, apart = (Wave(*(graph.sum((a, 1), (b, sign)) for a, b in zip(one, other, strict=True))) for sign in (1, -1))
    first, last = _sum_and_mirror(graph, even[at], both)
    far = even[quarter - at]
    below = Wave(graph.sum((far.real, 1), (apart.imaginary, 1)), graph.sum((far.imaginary, 1), (apart.real, 1)))
    above = Wave(graph.sum((far.real, 1), (apart.imaginary, -1)), graph.sum((apart.real, 1), (far.imaginary, -1)))
    return {at: first, 2 * quarter - at: last, quarter - at: below, quarter + at: above}


def _turned(graph: FlowGraph, wave: Wave, angle: float) -> Wave:
    """A wave times exp(i angle)."""
    c, s = cos(angle), sin(angle)
    real, imaginary = wave
    return Wave(graph.sum((real, c), (imaginary, -s)), graph.sum((real, s), (imaginary, c)))


def _sum_and_mirror(graph: FlowGraph, even: Wave, odd: Wave) -> tuple[Wave, Wave]:
    """Two waves from even and odd inputs: their sum is the wave of u; the conjugate of their difference is that of N/2
    - u.
    """
    ahead = Wave(graph.sum((even.real, 1), (odd.real, 1)), graph.sum((even.imaginary, 1), (odd.imaginary, 1)))
    behind = Wave(graph.sum((even.real, 1), (odd.real, -1)), graph.sum((odd.imaginary, 1), (even.imaginary, -1)))
    return ahead, behind


class Spectrum:
    """Places of the numbers of a tile of `length` by `length` elements.

    After transforms along both axes, places go row by row, and in a row 0, N/2, and then cosines and sines of each
    frequency between. Further places follow, for data and for sums.

    Attributes:
        quarters: places of all pairs of frequencies between: cc, cs, sc and ss.
        row_ends, col_ends: places of frequencies 0 and N/2 down, and across, with cosines of the others, and with
        sines.
        real_points: places of real numbers: frequencies 0 and N/2 both ways.
    """

    def __init__(self, length: int) -> None:
        h = length // 2 - 1
        self.length = length
        four = [(row, col) for row in (0, 1) for col in (0, 1)]
        self.quarters = [TilePlaces((2 + row) * length + 2 + col, h, h, (2 * length, 2)) for row, col in four]
        self.row_ends = [TilePlaces(2 + col, 2, h, (length, 2)) for col in (0, 1)]
        self.col_ends = [TilePlaces((2 + row) * length, h, 2, (2 * length, 1)) for row in (0, 1)]
        self.real_points = [row * length + col for row, col in four]

    def tiles(self, taps: tuple[int, int]) -> TileAlgorithm:
        """The tiles of a filter.

        The products are those of real points, then two for each other point: of (u, v), of (u, -v), of row ends and of
        column ends.
        """
        length, h, (down, across) = self.length, self.length // 2 - 1, (_axis(self.length, each) for each in taps)
        (cc, cs, sc, ss), (rows, row_sines), (cols, col_sines) = self.quarters, self.row_ends, self.col_ends

        def more(first: int, down: int, across: int, each: int = 1) -> TilePlaces:
            return TilePlaces(length**2 + first, down, across, (across * each, each))

        # Further places for data: real parts of (u, v), and negated imaginary parts of (u, -v), of row ends and of
        # column ends.
        one, other = more(0, h, h), more(h * h, h, h)
        no_rows, no_cols = more(2 * h * h, 2, h), more(2 * h * h + 2 * h, h, 2)
        # Further places for sums: real parts of (u, v) and of column ends; each is followed by its imaginary part.
        sums, ends = more(0, h, h, 2), more(2 * h * h, h, 2, 2)
        imaginary, end_imaginary = (grid._replace(first=grid.first + 1) for grid in (sums, ends))
        return TileAlgorithm(
            name=f"FFT of {length} x {length}",
            down=down,
            across=across,
            products=(
                *(TileProduct((place,), place) for place in self.real_points),
                *_products(one, cc, cs, sums),
                *_products(ss, sc, other, sc, swapped=True),
                *_products(rows, row_sines, no_rows, rows),
                *_products(cols, col_sines, no_cols, ends),
            ),
            transformed=partial(self.weights, taps),
            data_places=length**2 + sum(grid.size for grid in (one, other, no_rows, no_cols)),
            result_places=length**2 + 2 * (sums.size + ends.size),
            # From sums of cosines and sines to the spectrum, and its imaginary parts negated.
            data_mixes=(
                Mix(one, ((cc, 1), (ss, -1))),
                Mix(ss, ((cc, 1), (ss, 1))),
                Mix(cc, ((cs, 1), (sc, 1))),
                Mix(sc, ((sc, 1), (cs, -1))),
                Mix(cs, ((cc, -1),)),
                Mix(other, ((sc, -1),)),
                Mix(no_rows, ((row_sines, -1),)),
                Mix(no_cols, ((col_sines, -1),)),
            ),
            # From the spectrum of the outputs to factors of cosines and sines.
            result_mixes=(
                Mix(cc, ((sums, 1), (ss, 1))),
                Mix(ss, ((ss, 1), (sums, -1))),
                Mix(cs, ((imaginary, 1), (sc, -1))),
                Mix(sc, ((imaginary, 1), (sc, 1))),
                Mix(cols, ((ends, 1),)),
                Mix(col_sines, ((end_imaginary, 1),)),
            ),
            lost=partial(_lost, length, taps),
        )

    def weights(self, taps: tuple[int, int], filter_: NDArray[Any]) -> Spectra:
        """Filters [out_channel, (row, col,) channel] of all products, as [product, out_channel, channel].

        They are conjugate, and scaled so that the transposed way back is the inverse.
        """
        by_taps = filter_.reshape(len(filter_), *taps, -1).astype(np.float64)
        down, across = (waves(self.length)[:, :count] for count in taps)
        made: Spectra = np.einsum("ir,js,orsc->ijoc", down, across, by_taps, optimize=True) / self.length**2
        at = made.reshape(self.length**2, *made.shape[2:])
        cc, cs, sc, ss, *ends = (at[[*places(grid)]] for grid in (*self.quarters, *self.row_ends, *self.col_ends))
        parts = ((cc - ss, cs + sc), (cc + ss, sc - cs), ends[:2], ends[2:])
        pairs = (np.stack([2 * real, -2 * imaginary], axis=1) for real, imaginary in parts)
        real = at[self.real_points]
        return np.concatenate([real, *(pair.reshape(-1, *real.shape[1:]) for pair in pairs)])


def places(grid: TilePlaces) -> Iterator[int]:
    """All places of a grid, row by row."""
    down, across = grid.apart
    return (grid.first + i * down + j * across for i, j in product(range(grid.down), range(grid.across)))


def _products(
    real: TilePlaces, imaginary: TilePlaces, negated: TilePlaces, results: TilePlaces, swapped: bool = False
) -> Iterator[TileProduct]:
    """Two products for each point: with the real part of a weight, and with its imaginary part.

    Grids hold the data's real part, its imaginary part and the negated imaginary part; and the first of the sums' two
    parts, which stand side by side; `swapped` if the imaginary part comes first.
    """
    for a, b, c, first in zip(*map(places, (real, imaginary, negated, results)), strict=True):
        yield TileProduct((b, a) if swapped else (a, b), first)
        yield TileProduct((a, c) if swapped else (c, a), first, adds=True)


def waves(length: int) -> Spectra:
    """The real transform's matrix: 1, alternating signs, then cosines and sines of each frequency between."""
    turns = np.outer(np.arange(length // 2 + 1), np.arange(length)) % length * (2 * np.pi / length)
    cosines, sines = np.cos(turns), np.sin(turns)
    between = np.stack([cosines[1:-1], sines[1:-1]], axis=1).reshape(-1, length)
    return np.concatenate([cosines[[0, -1]], between])


@lru_cache
def fourier_tiles(length: int, taps: tuple[int, int]) -> TileAlgorithm:
    """Tiles of `length` by `length` elements, a power of two of at least 4, for a filter that is no larger."""
    return Spectrum(length).tiles(taps)


@lru_cache
def _axis(length: int, taps: int) -> AxisTransform:
    """Transforms along an axis: with few operations, or with few words, as the machine decides which is faster."""
    outputs = length - taps + 1
    graph = real_transform(length)
    back = graph.transposed(outputs)
    # Data is needed again for the next tile, so its inputs are kept; sums are not, but outputs beyond the map are left
    # out.
    data = graph.recipe(), graph.run_together().recipe()
    inverse = back.recipe(over_inputs=True), back.run_together().recipe(over_inputs=True)
    return AxisTransform(taps, outputs, data, inverse)


@lru_cache
def _lost(length: int, taps: tuple[int, int], channels: int) -> float:
    """The largest distance of an output from the whole number that it should be."""
    down, across = (_axis(length, each) for each in taps)
    # For operands of size 1, with the worst recipe and the worst place of each axis: all sums and differences have two
    # terms.
    data = max(_through(down.data, across.data, ErrorBound(1.0)))
    data = weighted([(data, 1), (data, 1)])
    rows = weighted([(ErrorBound(1.0), 1)] * taps[0])
    weights = weighted([(weighted([(rows, 1)] * taps[1]), 2 / length**2)] * 2)
    sums = products(data, weights, 2 * channels)
    output = max(_through(down.inverse, across.inverse, weighted([(sums, 1), (sums, 1)])))
    return output.off * LARGEST_SUM / (channels * taps[0] * taps[1])


def _through(down: tuple[Any, ...], across: tuple[Any, ...], given: ErrorBound) -> list[ErrorBound]:
    return [through(second, through(first, given)) for first in down for second in across]


def tiles_of(length: int, conv: Conv2d) -> TileAlgorithm:
    """Tiles of a convolution of stride 1 and one channel group, with at least two outputs each way in a tile.

    A single tap is refused, too: nothing is gained.

    Raises UnsuitableError for other convolutions.
    """
    steps = conv.stride, conv.dilation, conv.groups
    if not 1 < max(conv.kernel) < length or steps != ((1, 1), (1, 1), 1):
        raise refused(f"FFT of {length} x {length}", f"2 to {length - 1} x {length - 1}", conv)
    return fourier_tiles(length, conv.kernel)


FFT = in_tiles(
    "fft",
    "large kernels by Fourier transforms, in tiles of 16x16: the vector unit transforms, the array multiplies",
    partial(tiles_of, 16),
)
