"""The names that `--lowering` takes: those of the registry, and `auto`; and which one each layer is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError, Problem, UnsuitableError, did_you_mean
from tpusim.machines.tpu.lowering.registry import AS_CHANNEL_FIRST, GLOSSES, LOWERINGS, PARTIAL, meant

if TYPE_CHECKING:
    from tpusim.network.ops import Op
    from tpusim.network.workload import Workload

AUTO = "auto"
"""The fastest of all others, layer by layer."""


def known() -> tuple[str, ...]:
    """Every name."""
    return (*LOWERINGS, AUTO)


def of_any_layer() -> tuple[str, ...]:
    """Those that every layer can be asked for, however a workload looks; `auto` takes the others where it can."""
    return tuple(name for name in known() if name not in PARTIAL)


def glosses() -> tuple[tuple[str, str], ...]:
    """Every name, and what it means in a line."""
    return (*((name, GLOSSES.get(name, "")) for name in LOWERINGS), (AUTO, "of each layer the fastest of these"))


def candidates(lowering: str) -> tuple[str, ...]:
    """The lowerings of the registry that a name stands for."""
    return tuple(LOWERINGS) if lowering == AUTO else (lowering,)


def tried(lowering: str, layer: Op, batch: int) -> tuple[str, ...]:
    """The candidates for a layer, without those that would do with it what another does."""
    names = candidates(lowering)
    left_out = {each for each in AS_CHANNEL_FIRST if len(names) > 1 and _is_left(each, layer, batch)}
    return tuple(each for each in names if each not in left_out)


def _is_left(lowering: str, layer: Op, batch: int) -> bool:
    """Whether it would leave the layer to channel_first, which takes convolutions alone."""
    try:
        return layer.unit == "array" and AS_CHANNEL_FIRST[lowering](layer, batch)
    except UnsuitableError:
        return False


def check_known(lowering: object) -> None:
    """Raise InputError when it is none of the names; it says which there are."""
    if lowering not in known():
        hint = did_you_mean(str(lowering), known()) or ";"
        raise InputError(f"unknown lowering {lowering!r}{hint} there is {', '.join(known())}")


def asked_of(workload: Workload, lowering: str) -> tuple[tuple[Op, str], ...]:
    """Each layer with the name that it has of its own, or else `lowering`; with what that means for such an op.

    Raises:
        InputError: with every name that is unknown, at its place.
    """
    check_known(lowering)
    check_own(workload)
    own = {each.layer: each.lowering for each in workload.lowerings}
    asked = ((layer, own.get(layer.name, lowering)) for layer in workload.layers)
    return tuple((layer, meant(layer, name)) for layer, name in asked)


def check_own(workload: Workload) -> None:
    """Raise InputError with every unknown name that layers have of their own, at its place."""
    if problems := [*_unknown(workload)]:
        raise InputError(problems)


def _unknown(workload: Workload) -> Iterator[Problem]:
    """Once for all layers of an entry."""
    for each in {each.where or each.layer: each for each in workload.lowerings}.values():
        try:
            check_known(each.lowering)
        except InputError as error:
            yield Problem(str(error), each.where or f"layer {each.layer}")
