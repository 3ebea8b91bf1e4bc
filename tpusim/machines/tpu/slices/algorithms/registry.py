"""Every algorithm by its name, and which of them Google's compiler takes for an op, its axes and its bytes.

The rules are read off what the compiler emitted ahead of time (`xla_collectives.csv`); where its code names an emitter,
a strategy, colours and phases, these stand beside the algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.machines.tpu.slices.algorithms import direct, ring, rotated_pincer
from tpusim.machines.tpu.slices.collective import OPS, Collective
from tpusim.machines.tpu.slices.exchange import Exchange
from tpusim.machines.tpu.slices.slice import Emitters
from tpusim.machines.tpu.slices.torus import Group


class Algorithm(NamedTuple):
    """An algorithm: what it does, the ops that it is for, and what makes its steps."""

    about: str
    ops: tuple[str, ...]
    exchange: Callable[[Collective], Exchange]


_SUMS = ("all_reduce", "reduce_scatter", "all_gather")

ALGORITHMS: Mapping[str, Algorithm] = {
    "rotated_pincer": Algorithm(
        "rings axis after axis add up and join again, with streams that begin on different axes",
        _SUMS, rotated_pincer.reduces,
    ),
    "short_pincer": Algorithm(
        "along each axis parts go straight to where they are added, for few bytes", _SUMS, rotated_pincer.reduces_short
    ),
    "gather_ring": Algorithm("parts go round one ring through all chips, half each way", ("all_gather",), ring.joins),
    "scatter_ring": Algorithm(
        "parts go round one ring through all chips and are added up, half each way", ("reduce_scatter",), ring.adds_up
    ),
    "direct": Algorithm("every chip copies to every other, axis by axis", ("all_to_all",), direct.exchanges),
    "neighbour": Algorithm("every chip copies to the next on a ring through all", ("permute",), direct.shifts),
}  # fmt: skip
"""Algorithms by their names."""


class CompilerChoice(NamedTuple):
    """What the compiler takes: the algorithm, and the names in its code; no names where that has none.

    `books` are the links and SparseCores that its scheduler keeps for the op alone.
    """

    algorithm: str
    emitter: str = ""
    strategy: str = ""
    colours: int = 0
    phases: int = 0
    books: tuple[str, ...] = ()


_PAIR = 2
"""Chips of an axis both ways along which are one link."""


def choice(
    op: str, lengths: Sequence[int], closed: Sequence[bool], size: int, is_whole: bool, emitters: Emitters,
    axes: Sequence[str] = (),
) -> CompilerChoice:  # fmt: skip
    """Return what the compiler takes for an op over axes of these `lengths`, of which some are `closed` to rings.

    `size` is in bytes, in the sense of the op; `is_whole`: the axes are all that the slice has.
    """
    phases, chips = len(lengths), math.prod(lengths)
    sparse = emitters.adds == "sparse_core"
    books = _books(op, axes, sparse)
    if op == "permute":
        return CompilerChoice("neighbour", books=books)
    if op == "all_to_all":
        router = emitters.colours == "axis" and phases == 1 and closed[0]
        return CompilerChoice("direct", "NetRouterEmitter" if router else "AllToAllEmitter", books=())
    if op == "all_gather" and (
        sparse or phases == 1 or (phases == 2 and size > (emitters.padded_part_bytes or 0) * chips)
    ):
        return CompilerChoice("gather_ring", "" if sparse else "1DAllGatherNonMajorDim", books=books)
    one_ring = sparse or phases == 1 or (phases == 2 and (not is_whole or chips <= emitters.ring_chips))
    if op == "reduce_scatter" and one_ring:
        if sparse:
            return CompilerChoice("scatter_ring", books=books)
        return CompilerChoice("scatter_ring", "SingleInputAllReduceScatterFusion", "StrategyRing", 1, 1, books)
    if sparse:
        return CompilerChoice("rotated_pincer", books=books)
    return _reduced(lengths, closed, size, emitters, books)


def _reduced(
    lengths: Sequence[int], closed: Sequence[bool], size: int, emitters: Emitters, books: tuple[str, ...]
) -> CompilerChoice:
    """Return what becomes of an all-reduce, or of what is turned into one."""
    phases = len(lengths)
    most = (emitters.short_part_bytes or 0) * lengths[0] if phases == 1 else emitters.short_bytes or 0
    if size <= most:
        colours = phases if len({*lengths}) == 1 else 1
        strategy = "StrategyRing" if phases == 1 else "StrategyND"
        return CompilerChoice("short_pincer", "RotatedPincerShortEmitter", strategy, colours, phases, books)
    emitter = "RotatedPincerEmitter"
    if phases == 1:
        if emitters.colours == "axis" and closed[0] and lengths[0] >= emitters.long_ring:
            return CompilerChoice("rotated_pincer", emitter, "StrategyRing", 1, 1, books)
        return CompilerChoice("rotated_pincer", emitter, "UniDirection1DRingStrategy", 2, 1, books)
    # Long rings that close, and pairs, whose two ways are one link, have a colour an axis.
    if emitters.colours == "axis" and any(
        (wraps and length >= emitters.long_ring) or length == _PAIR
        for length, wraps in zip(lengths, closed, strict=True)
    ):
        return CompilerChoice("rotated_pincer", emitter, "StrategyND", phases, phases, books)
    return CompilerChoice("rotated_pincer", emitter, "UniDirectionNDRingStrategy", 2 * phases, phases, books)


def _books(op: str, axes: Sequence[str], sparse: bool) -> tuple[str, ...]:
    """Return what the scheduler keeps: the links of its axes, of a permute all; and SparseCores."""
    taken = "xyz" if op == "permute" else axes
    links = [f"Ici{axis.upper()}{way}" for axis in taken for way in ("Minus", "Plus")]
    if sparse and op != "permute":
        links += ["SparseCore0"] + ["SparseCore1"] * (op == "all_reduce" and len(axes) > 1)
    return tuple(links)


def chosen(collective: Collective) -> CompilerChoice:
    """Return what the compiler takes for a collective."""
    group = collective.group
    closed = [group.closed(span) for span in group.spans]
    names = [group.torus.axes[span.axis].name for span in group.spans]
    found = choice(
        collective.op, group.lengths, closed, collective.bytes, group.is_whole, collective.emitters, names
    )  # fmt: skip
    if group.leaves_slices and collective.op in _SUMS:
        # Axis after axis, so that every chip sends its part over the network.
        found = _reduced(group.lengths, closed, collective.bytes, collective.emitters, ())
    # No code was read in which chips of several slices take part.
    return CompilerChoice(found.algorithm) if group.joins_slices else found


def exchange_of(collective: Collective, algorithm: str) -> Exchange:
    """Return the steps of a collective by an algorithm. Raises InputError for one that is not for its op."""
    op, able = collective.op.replace("_", "-"), algorithms_for(collective.op, collective.group)
    if algorithm not in ALGORITHMS:
        guess = did_you_mean(algorithm, able) or ";"
        raise InputError(Problem(f"no algorithm {algorithm!r}{guess} {op} has {', '.join(able)}", "--algorithm"))
    if algorithm not in able:
        where = " within slices and between them" * (collective.op in ALGORITHMS[algorithm].ops)
        says = f"{algorithm} makes no {op}{where}; write {' or '.join(able)}"
        raise InputError(Problem(says, "--algorithm"))
    return ALGORITHMS[algorithm].exchange(collective)


def algorithms_for(op: str, group: Group) -> list[str]:
    """Return the algorithms of an op on a group: one ring within slices and between them would leave most of the
    network between them idle, so nobody makes sums or gathers of it.
    """
    assert op in OPS, "checked by whoever asks"
    rings = ("gather_ring", "scatter_ring") if group.leaves_slices else ()
    return [name for name, each in ALGORITHMS.items() if op in each.ops and name not in rings]
