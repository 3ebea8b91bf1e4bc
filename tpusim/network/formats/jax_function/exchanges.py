"""Primitives of JAX that work across chips of a mesh, as exchanges of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.graph import ValueExchange

_REDUCED = {"psum": "sum", "psum2": "sum", "psum_invariant": "sum", "pmax": "max", "pmin": "min"}
_GATHERED = frozenset({"all_gather", "all_gather_invariant"})
EXCHANGES = frozenset({*_REDUCED, *_GATHERED, "reduce_scatter", "all_to_all", "ppermute"})
"""The primitives that `exchanges_of` reads."""


def exchanges_of(op: str, said: Mapping[str, Any], mesh: Mapping[str, int]) -> list[ValueExchange]:
    """Return the exchanges that a primitive is, one after another; none among chips of which there is one.

    Raises UnfitNode where there is no such exchange.
    """
    named = said.get("axes", said.get("axis_name"))
    axes = named if isinstance(named, tuple | list) else (named,)
    if any(isinstance(each, int) for each in axes):
        raise UnfitNode("it works along axes of a value, and of a mesh, at once")
    over = tuple(map(str, axes))
    if unknown := [name for name in over if name not in mesh]:
        raise UnfitNode(f"there is no axis {', '.join(unknown)} around it")
    if said.get("axis_index_groups") is not None:
        raise UnfitNode("its groups of chips are no axis of the mesh (axis_index_groups)")
    over = tuple(name for name in over if mesh[name] > 1)
    if not over:
        return []
    if op in _REDUCED:
        return [ValueExchange("all_reduce", over, combine=_REDUCED[op])]
    if op in _GATHERED:
        return [ValueExchange("all_gather", over, int(said["all_gather_dimension"]))]
    if op == "reduce_scatter":
        return [ValueExchange("reduce_scatter", over, int(said["scatter_dimension"]))]
    if op == "all_to_all":
        return [ValueExchange("all_to_all", over, int(said["split_axis"]), int(said["concat_axis"]))]
    return _permutes([(int(one), int(other)) for one, other in said["perm"]], over, prod(mesh[name] for name in over))


def _permutes(pairs: Sequence[tuple[int, int]], over: tuple[str, ...], chips: int) -> list[ValueExchange]:
    """Return permutes from neighbour to neighbour: all go as many chips on, the shorter way round."""
    ways = {(other - one) % chips for one, other in pairs}
    if ways == {0} and len(pairs) == chips:
        return []
    if len(ways) != 1 or 0 in ways:
        raise UnfitNode("its chips do not all send as far on, round the axis")
    (way,) = ways
    # On a ring each link carries what all chips send over it, so a way of several hops takes as many permutes.
    back = way > chips // 2
    hops = chips - way if back else way
    if len(pairs) < chips and hops > 1:
        raise UnfitNode("some chips send beyond their neighbours, and others nothing")
    if len(pairs) < chips:
        return [ValueExchange("permute", over, pairs=tuple(sorted(pairs)))]
    step = None if not back else tuple((rank, (rank - 1) % chips) for rank in range(chips))
    return [ValueExchange("permute", over, pairs=step)] * hops
