"""Who reads whom: for each layer of a network, the layers whose outputs it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tpusim.base.errors import Problem
from tpusim.input.scalars import show

INPUT = "input"
"""What layers call the input of their network, unless it says otherwise."""


class Source(NamedTuple):
    """What a layer reads for one of its tensors.

    Attributes:
        names: layers, or inputs of the network; the outputs of several lie side by side along the channels.
        direct: whether it reads all of just that, as it was made; otherwise what takes no time here lies between, such
            as a transposition, or the layer reads a part.
        placed: whether, if it is not direct, each element still is made of those at its place in what they made.
    """

    names: tuple[str, ...]
    direct: bool = True
    placed: bool = False


Edges: TypeAlias = tuple[tuple[str, tuple[Source, ...]], ...]
"""By layer what it reads, in the order of its tensors (`Op.reads`); nothing for those that are weights."""


def side_by_side(sources: Iterable[Source], direct: bool = True) -> Source:
    """Several as one."""
    every = [*sources]
    names = tuple(dict.fromkeys(name for each in every for name in each.names))
    whole = sum(len(each.names) for each in every) == len(names)
    return Source(names, direct and whole and all(each.direct for each in every))


def read_edges(given: object) -> Edges:
    """By the names of layers, as people write them in Python ({"conv2": ["conv1"]}), or as they are kept."""
    if not isinstance(given, Mapping):
        return given  # type: ignore[return-value]
    return tuple((name, tuple(map(_source, sources))) for name, sources in given.items())


def _source(given: object) -> Source:
    return Source((given,)) if isinstance(given, str) else Source(*given)  # type: ignore[misc]


def problems_of(edges: Edges, layers: Sequence[str]) -> list[Problem]:
    """What is wrong with them: layers that read what comes later. Those of layers that are left out tell nothing."""
    found: list[Problem] = []
    place = {name: index for index, name in enumerate(layers)}
    for name, sources in edges:
        for read in (each for source in sources for each in source.names):
            if place.get(read, -1) >= place.get(name, len(layers)):
                found.append(Problem(f"layer {show(name)} reads {show(read)}, which is not before it", "edges"))
    return found


def without(edges: Edges, left_out: Iterable[str], placed: Collection[str] = ()) -> Edges:
    """Those of the other layers, which read what those `left_out` have read; `placed` of these leave each element at
    its place.
    """
    gone, instead = {*left_out}, dict[str, Source]()

    def seen(source: Source) -> Source:
        if not gone & {*source.names}:
            return source
        every = [instead.get(name, Source((name,))) for name in source.names]
        stays = len(every) == 1 and (source.direct or source.placed) and (every[0].direct or every[0].placed)
        return side_by_side(every, direct=False)._replace(placed=stays)

    kept: list[tuple[str, tuple[Source, ...]]] = []
    for name, sources in edges:
        now = tuple(map(seen, sources))
        if name in gone:
            stays = name in placed and all(each.direct or each.placed for each in now)
            instead[name] = side_by_side(now, direct=False)._replace(placed=stays)
        else:
            kept.append((name, now))
    return tuple(kept)
