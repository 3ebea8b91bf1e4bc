"""What a node asks for by its attributes that is not known here: told before any value is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod

from tpusim.reference.nodes.moves import TYPES
from tpusim.reference.nodes.node import Call
from tpusim.reference.nodes.recurrent import USUAL
from tpusim.reference.nodes.reductions import NEAREST, PLACES


def refusal(op: str, call: Call) -> str:
    """Return why the values of a node cannot be computed, whatever it reads; empty where they can."""
    return next(REFUSALS[op](call), "") if op in REFUSALS else ""


def _cast(call: Call) -> Iterator[str]:
    if (to := call.get("to")) not in TYPES:
        yield f"a Cast to ONNX's type {to}, which NumPy has not"


def _training(call: Call) -> Iterator[str]:
    if call.get("training_mode", 0):
        yield "BatchNormalization as it is in training"


def _resize(call: Call) -> Iterator[str]:
    mode, by = call.get("mode", "nearest"), call.get("coordinate_transformation_mode", "half_pixel")
    nearest = call.get("nearest_mode", "round_prefer_floor")
    if mode not in ("nearest", "linear") or call.get("antialias", 0):
        yield f"Resize by {mode}{' with antialias' if call.get('antialias', 0) else ''}"
    if call.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        yield "Resize that keeps the ratio of the sides"
    if call.opset >= 11 and by not in PLACES:
        yield f"Resize with {by}, which is not known"
    if call.opset >= 11 and mode == "nearest" and nearest not in NEAREST:
        yield f"Resize to the nearest by {nearest}, which is not known"


def _upsample(call: Call) -> Iterator[str]:
    return _resize(Call({"mode": call.get("mode", "nearest")}, opset=10))


def _recurrent(call: Call, op: str) -> Iterator[str]:
    ways = 2 if call.get("direction") == "bidirectional" else 1
    if call.get("activations", USUAL[op] * ways) != USUAL[op] * ways:
        yield f"{op} with activations of its own"
    if call.get("clip") or call.get("input_forget"):
        yield f"{op} that clips, or couples its gates"


def _indices(call: Call) -> Iterator[str]:
    mode = str(call.get("mode", ""))
    if mode.rpartition(".")[-1] not in ("CLIP", "PROMISE_IN_BOUNDS", "FILL_OR_DROP"):
        yield f"indices by {mode}, which is not known"


def _windows(call: Call) -> Iterator[str]:
    if prod(call.get("base_dilation") or ()) > 1:
        yield "windows over a map that is spread"


REFUSALS: Mapping[str, Callable[[Call], Iterator[str]]] = {
    "Cast": _cast, "BatchNormalization": _training, "Resize": _resize, "Upsample": _upsample,
    **{op: partial(_recurrent, op=op) for op in USUAL},
    **dict.fromkeys(("lax.gather", "lax.scatter", "lax.scatter-add"), _indices),
    **dict.fromkeys(("lax.reduce_window_max", "lax.reduce_window_sum"), _windows),
}  # fmt: skip
"""What is not known of an operator, by its name: sentences about a node."""
