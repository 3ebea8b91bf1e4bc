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


GLOSSES = {
    "channel_first": "implicit im2col, tap by tap: a pass multiplies all pixels by one tap of the filter, or by a few",
    "channel_last": "implicit im2col whose passes go through the taps of a channel, then of the next",
    "explicit": "im2col proper: the lowered matrix is written, to HBM unless told otherwise, and then multiplied",
    "implicit_gemm": "implicit im2col cut into passes of one length, wherever a tap of the filter ends",
    "indirect": "channel_first whose every address is read from a table of pointers",
}
"""Those shipped, each a module of its name; and what each is, for those who choose."""
LOWERINGS: dict[str, Lowering] = {name: _from(name) for name in GLOSSES}
PLANNED: dict[str, Callable[[Op, int, Hardware], Planned]] = {name: _planned_from(name) for name in GLOSSES}
"""How many steps a layer will take, for those lowerings that can tell before they write them down."""


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Lowered:
    """Lower one layer by the lowering of that name, which there is; its tensors lie as the machine says.

    Raises:
        CapacityError: when nothing fits the memories, or the lowering is not one for such a machine; names the layer.
    """
    from tpusim.machines.tpu.lowering.laid_out import laid_out

    with _named(layer):
        return laid_out(LOWERINGS[lowering](layer, batch, hardware), hardware)


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Planned | None:
    """How many steps the lowering of that name makes of a layer; None where it cannot tell. Raises as `lowered`."""
    with _named(layer):
        return PLANNED[lowering](layer, batch, hardware) if lowering in PLANNED else None


@contextmanager
def _named(layer: Op) -> Iterator[None]:
    try:
        yield
    except CapacityError as error:
        problems = (Problem(str(each), f"layer {layer.name}") for each in error.problems)
        raise CapacityError(problems) from None
