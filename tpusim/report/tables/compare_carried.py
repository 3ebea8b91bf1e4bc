"""Layers that ride on another's results in one of two runs, and are by themselves in the other: one row for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpusim.result.records import LayerResult, Result

Key = tuple[str, int]
"""A layer's name, numbered so that a second of one name is not taken for the first."""


@dataclass(frozen=True)
class Together:
    """Layers that the other run has as one; `inputs` are what they read of others."""

    cycles: int
    time_us: float
    macs: int
    pe_utilization: float
    inputs: tuple[str, ...]
    layers: int


Matched = LayerResult | Together


def matched(before: Result, after: Result) -> tuple[dict[Key, Matched], dict[Key, Matched]]:
    """The layers of each by what they are matched by; inputs are called by the layers that they became part of."""
    both = {layer.name for layer in before.layers} & {layer.name for layer in after.layers}
    bearers = {name: bearer for name, bearer in _bearers(before, after).items() if bearer in both}
    return _rows(_groups(before, bearers), bearers), _rows(_groups(after, bearers), bearers)


def _bearers(*results: Result) -> dict[str, str]:
    """By layer that rides in any of the results, or carries others in one that ride elsewhere in another, the layer
    that it goes with.
    """
    ahead: dict[str, str] = {}

    def of(name: str) -> str:
        while name in ahead:
            name = ahead[name]
        return name

    for layer in (layer for result in results for layer in result.layers):
        for rider in layer.riders:
            if of(rider) != of(layer.name):
                ahead[of(rider)] = of(layer.name)
    return {name: of(name) for name in ahead}


def _groups(result: Result, bearers: Mapping[str, str]) -> dict[Key, list[LayerResult]]:
    seen: Counter[str] = Counter()
    groups: dict[Key, list[LayerResult]] = {}
    carrying = {*bearers.values()}
    for layer in result.layers:
        name = bearers.get(layer.name, layer.name)
        groups.setdefault((name, 0 if name in carrying else seen[name]), []).append(layer)
        seen[name] += 1
    return groups


def _rows(groups: Mapping[Key, Sequence[LayerResult]], bearers: Mapping[str, str]) -> dict[Key, Matched]:
    return {key: _one(key[0], layers, bearers) for key, layers in groups.items()}


def _one(name: str, layers: Sequence[LayerResult], bearers: Mapping[str, str]) -> Matched:
    inputs = tuple(dict.fromkeys(_read(name, layers, bearers)))
    if len(layers) == 1:
        return replace(layers[0], inputs=inputs)
    cycles = sum(layer.cycles for layer in layers)
    used = sum(layer.pe_utilization * layer.cycles for layer in layers) / cycles
    return Together(cycles, sum(layer.time_us for layer in layers), sum(layer.macs for layer in layers), used, inputs,
                    len(layers))  # fmt: skip


def _read(name: str, layers: Sequence[LayerResult], bearers: Mapping[str, str]) -> Iterator[str]:
    """What layers read of others than themselves."""
    for each in (each for layer in layers for each in layer.inputs):
        if (read := bearers.get(each, each)) != name:
            yield read
