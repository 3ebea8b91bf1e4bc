"""Every lowering by its name: what `--lowering` chooses between. A new one is a module and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from tpusim.base.errors import CapacityError, Problem

if TYPE_CHECKING:
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.program.explanation import Lowered, Lowering, Planned
    from tpusim.network.ops import Op


def _from(module: str) -> Lowering:
    """The `lower` of a module, which is imported when the first layer is lowered: help pages only name it."""

    def lower(layer: Op, batch: int, hardware: Hardware) -> Lowered:
        lowered: Lowered = import_module(f"tpusim.machines.tpu.lowering.{module}").lower(layer, batch, hardware)
        return lowered

    return lower


def _planned_from(module: str) -> Callable[[Op, int, Hardware], Planned]:
    """The `planned` of a module, imported when it is first asked."""

    def planned(layer: Op, batch: int, hardware: Hardware) -> Planned:
        counted: Planned = import_module(f"tpusim.machines.tpu.lowering.{module}").planned(layer, batch, hardware)
        return counted

    return planned


LOWERINGS: dict[str, Lowering] = {
    "channel_first": _from("channel_first"),
    "channel_last": _from("channel_last"),
    "explicit": _from("explicit"),
    "implicit_gemm": _from("implicit_gemm"),
    "indirect": _from("indirect"),
}
PLANNED: dict[str, Callable[[Op, int, Hardware], Planned]] = {
    "channel_first": _planned_from("channel_first"),
    "channel_last": _planned_from("channel_last"),
    "explicit": _planned_from("explicit"),
    "implicit_gemm": _planned_from("implicit_gemm"),
    "indirect": _planned_from("indirect"),
}
"""How many steps a layer will take, for those lowerings that can tell before they write them down."""
FROM_BANKS = frozenset({"channel_last"})
"""Those that can find the ifmap in banks."""


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Lowered:
    """Lower one layer by the lowering of that name, which there is.

    Raises:
        CapacityError: when nothing fits the vector memories, or the ifmap lies where this lowering does not look;
            names the layer.
    """
    with _named(layer):
        return _fit_for(hardware, lowering)(layer, batch, hardware)


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Planned | None:
    """How many steps the lowering of that name makes of a layer; None where it cannot tell. Raises as `lowered`."""
    with _named(layer):
        _fit_for(hardware, lowering)
        return PLANNED[lowering](layer, batch, hardware) if lowering in PLANNED else None


def _fit_for(hardware: Hardware, name: str) -> Lowering:
    """The lowering of that name, if it is one for such a machine."""
    if hardware.banked and name not in FROM_BANKS:
        message = f"{name} reads the ifmap from the lanes; write lanes, or take --lowering {', '.join(FROM_BANKS)}"
        raise CapacityError(Problem(message, "vector_memory.organization"))
    return LOWERINGS[name]


@contextmanager
def _named(layer: Op) -> Iterator[None]:
    try:
        yield
    except CapacityError as error:
        problems = (Problem(str(each), f"layer {layer.name}") for each in error.problems)
        raise CapacityError(problems) from None
