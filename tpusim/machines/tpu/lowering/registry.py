"""Every lowering by its name: what `--lowering` chooses between. A new one is a module and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import CapacityError, Problem, UnsuitableError

if TYPE_CHECKING:
    from tpusim.machines.tpu.description import Hardware
    from tpusim.machines.tpu.program.explanation import Lowered, Lowering, Planned, Way, Ways
    from tpusim.network.ops import ArrayOp, Op


_SAID = {"array": "array", "vector": "vector unit"}
"""Units of a machine, in words."""


def _from(module: str, name: str) -> Callable[[Op, int, Hardware], Any]:
    """A function of a module, which is imported when the first layer is lowered: help pages only name it.

    It raises UnsuitableError for ops of another unit of the machine.
    """

    def called(layer: Op, batch: int, hardware: Hardware) -> Any:
        layer, own = layer.core, UNITS.get(module, "array")
        if layer.unit != own:
            says = f"{layer.op} is an op of the {_SAID[layer.unit]}, and {module} lowers those of the {_SAID[own]}"
            raise UnsuitableError(f"{says}; name another lowering, or none")
        if layer.unit == "vector" and layer.whole_rows != (module in WHOLE_ROWS):
            own = meant(layer, module)
            raise UnsuitableError(f"{layer.op} is lowered by {own}, not by {module}; name that, or none")
        return getattr(import_module(f"tpusim.machines.tpu.lowering.{module}"), name)(layer, batch, hardware)

    return called


GLOSSES = {
    "channel_first": "implicit im2col, tap by tap: a pass multiplies all pixels by one tap of the filter, or by a few",
    "channel_last": "implicit im2col whose passes go through the taps of a channel, then of the next",
    "explicit": "im2col proper: the lowered matrix is written, to HBM unless told otherwise, and then multiplied",
    "implicit_gemm": "implicit im2col cut into passes of one length, wherever a tap of the filter ends",
    "indirect": "channel_first whose every address is read from a table of pointers",
    "block_diagonal": "channel_first with several channel groups in a pass, side by side: grouped and depthwise layers",
    "vector": "depthwise convolutions by the vector unit: it multiplies and adds, nothing goes through the array",
    "vector_ops": "pooling, sums and products of maps, activations: each output word by word, by the vector unit",
    "vector_rows": "softmax, layer normalization, means of rows: by the vector unit, whole rows in a lane",
    "winograd_2": "3x3 convolutions in 2x2 tiles: the vector unit transforms, the array has 2.25 times fewer products",
    "winograd_4": "the same in 4x4 tiles: 4 times fewer products, and more to transform",
    "fft": "large kernels by Fourier transforms, in tiles of 16x16: the vector unit transforms, the array multiplies",
    "stride_phases": "channel_first of transposed convolutions: one for each output between two elements of the ifmap",
    "zero_insertion": "transposed convolutions as ordinary ones, of an ifmap with zeros between its elements",
    "deformable": "deformable convolutions: the vector unit gathers samples by address tables, the array multiplies",
}
"""Those shipped, each a module of its name; and what each is, for those who choose."""
PARTIAL = frozenset({
    "vector", "vector_ops", "vector_rows", "winograd_2", "winograd_4", "fft", "stride_phases", "zero_insertion",
    "deformable",
})  # fmt: skip
"""Those of some layers alone; they refuse all others (UnsuitableError)."""
UNITS: dict[str, str] = {"vector_ops": "vector", "vector_rows": "vector"}
"""The unit of a machine whose ops a lowering takes, where that is not the array."""
WHOLE_ROWS = frozenset({"vector_rows"})
"""Those of them for ops of whole rows; the others take those of single places."""
MEANT = {("conv_transpose2d", "channel_first"): "stride_phases", ("deform_conv2d", "channel_first"): "deformable"}
"""For an op that a lowering does not take as it is, the one that does the same for it: what a run takes unasked."""
LOWERINGS: dict[str, Lowering] = {name: _from(name, "lower") for name in GLOSSES}
PLANNED: dict[str, Callable[[Op, int, Hardware], Planned]] = {name: _from(name, "planned") for name in GLOSSES}
"""How many steps a layer will take, for those lowerings that can tell before they write them down."""
LEAST: dict[str, Callable[[Op, int, Hardware], float]] = {
    name: _from(name, "least") for name in ("winograd_2", "winograd_4", "fft")
}
"""Cycles that no run of a lowering can do without, for those that can tell before they lower."""
WAYS: dict[str, Ways] = {name: _from(name, "ways") for name in GLOSSES if name not in PARTIAL}
"""What `mapping.search: simulate` chooses from, for those lowerings that leave a choice; others know one way."""


def meant(layer: Op, asked: str) -> str:
    """The lowering that a name means for a layer: ops of a unit that has one way to do them are lowered in that way."""
    only = [name for name, unit in UNITS.items() if unit == layer.unit and layer.whole_rows == (name in WHOLE_ROWS)]
    return only[0] if only else MEANT.get((layer.op, asked), asked)


def _is_a_product(layer: ArrayOp, batch: int) -> bool:
    return layer.convolution(batch)[0].is_a_product


def _has_one_group(layer: ArrayOp, batch: int) -> bool:
    return layer.convolution(batch)[0].groups == 1


AS_CHANNEL_FIRST: dict[str, Callable[[Any, int], bool]] = {
    "explicit": _is_a_product, "indirect": _is_a_product, "block_diagonal": _has_one_group,
}  # fmt: skip
"""Those that leave some layers to channel_first, and which: who looks for the fastest need not try them on these."""


def lowered(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Lowered:
    """Lower one layer by the lowering of that name, which there is; its tensors lie as the machine says.

    Raises:
        CapacityError: when nothing fits the memories, or the lowering is not one for such a machine; names the layer.
    """
    with _named(layer):
        found = LOWERINGS[lowering](layer, batch, _left(layer, batch, hardware))
        return _finished(found, layer, batch, hardware, lowering)


def _left(layer: Op, batch: int, hardware: Hardware) -> Hardware:
    """The machine as far as it is left to the lowering of a layer's core."""
    if layer.core is layer:
        return hardware
    # Here, because help pages need none of what it imports.
    from tpusim.machines.tpu.lowering.riding import spared

    return spared(layer, batch, hardware)


def _finished(found: Lowered, layer: Op, batch: int, hardware: Hardware, lowering: str) -> Lowered:
    """What no lowering sees to by itself: where its tensors lie, and which choices it does not know."""
    # Here, because help pages need none of what they import.
    from tpusim.machines.tpu.lowering.laid_out import laid_out
    from tpusim.machines.tpu.lowering.riding import riding
    from tpusim.machines.tpu.lowering.unused import told
    from tpusim.network.ops import Fused

    by = "channel_first" if lowering in AS_CHANNEL_FIRST and AS_CHANNEL_FIRST[lowering](layer, batch) else lowering
    whole = riding(found, layer, hardware) if isinstance(layer, Fused) else found
    return told(laid_out(whole, hardware), by, hardware)


def ways_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Sequence[Way]:
    """The ways in which the lowering of that name may lower a layer: one, or what a simulation should choose from.

    Raises as `lowered`, which takes the first; so do the ways.
    """
    # Here, because help pages need none of what it imports.
    from tpusim.machines.tpu.program.explanation import Way

    if hardware.mapping.search == "estimate" or lowering not in WAYS:
        return [Way(partial(lowered, layer, batch, hardware, lowering))]

    def named(way: Way) -> Lowered:
        with _named(layer):
            return _finished(way.lower(), layer, batch, hardware, lowering)

    with _named(layer):
        left = _left(layer, batch, hardware)
        return [way._replace(lower=partial(named, way)) for way in WAYS[lowering](layer, batch, left)]


def planned_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> Planned | None:
    """How many steps the lowering of that name makes of a layer; None where it cannot tell. Raises as `lowered`."""
    with _named(layer):
        return PLANNED[lowering](layer, batch, _left(layer, batch, hardware)) if lowering in PLANNED else None


def least_of(layer: Op, batch: int, hardware: Hardware, lowering: str) -> float:
    """Cycles that no run by the lowering of that name can do without; 0 where it cannot tell. Raises as `lowered`."""
    with _named(layer):
        return LEAST[lowering](layer, batch, hardware) if lowering in LEAST else 0.0


@contextmanager
def _named(layer: Op) -> Iterator[None]:
    try:
        yield
    except CapacityError as error:
        problems = (Problem(str(each), f"layer {layer.name}") for each in error.problems)
        raise type(error)(problems) from None
