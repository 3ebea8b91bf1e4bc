"""The entries of a workload file: each is a layer, as often as it says; and what other tools call operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, NamedTuple

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.form import NAMES, Form, Name, Truth, validated, whole
from tpusim.input.scalars import show
from tpusim.network.ops import OPS
from tpusim.network.ops.op import Op
from tpusim.network.wiring import FREE, INPUTS, Made, Wiring
from tpusim.network.workload import Source

MOST_LAYERS = 100_000
EXAMPLE = "{name: fc, op: gemm, m: batch, n: 1000, k: 512}"
LOWERING = "lowering"
"""The key of a layer that says by which lowering it is to become passes; which there are, machines know."""
BIASES = "biases"
"""The key of a layer that says whether a number for each output channel is added to its results."""


class Read(NamedTuple):
    """What an entry of a file is: layers, none where it takes no time.

    Attributes:
        lowering: the one that it names.
        sources: what each of the layers reads, where the file says so of any layer.
        biases: whether each of the layers has them.
    """

    layers: tuple[Op, ...]
    lowering: str | None = None
    sources: tuple[Source, ...] = ()
    biases: bool = False


def read_layers(entry: object, names: Mapping[str, int], wiring: Wiring | None = None) -> Read:
    """The layer of a file, as often as its `count` says, and its lowering; sizes may be worked out from `names`.

    With the `wiring` of a graph, which then knows it, what it reads gives it sizes that it leaves out, and is checked.

    Raises InputError whose problems' `where` is the key inside the layer, or None for the layer itself.
    """
    if not isinstance(entry, Mapping):
        raise InputError(f"{show(entry)} is not a layer; write e.g. {EXAMPLE}")
    if "op" not in entry:
        raise InputError(Problem(f"required key is missing; add op: with one of {', '.join(OPS)}", "op"))
    op = entry["op"]
    if not isinstance(op, str) or (op not in OPS and op not in FREE):
        instead = "" if str(op).casefold() in OPS else instead_of(str(op))
        hint = f"{instead};" if instead else did_you_mean(str(op), [*OPS, *FREE]) or ";"
        raise InputError(Problem(f"unknown op {show(op)}{hint} ops: {', '.join((*OPS, *FREE))}", "op"))
    read = wiring.read_by(entry) if wiring else []
    sizes = {key: value for key, value in entry.items() if key not in ("op", *_AROUND)}
    if wiring and op in FREE:
        # Entries that take no time cannot have what stands around layers: the form says so.
        around = {key: entry[key] for key in _AROUND if key in entry and key != INPUTS}
        free = _form_of(op).build({**sizes, **around}, {NAMES: names})
        wiring.add_free(free, read)
        return Read(())
    return _read_layer(entry, op, sizes, names, wiring, read)


def _read_layer(
    entry: Mapping[str, Any], op: str, sizes: dict[str, Any], names: Mapping[str, int], wiring: Wiring | None,
    read: Sequence[Made],
) -> Read:  # fmt: skip
    """An entry that is a layer, or several."""
    wrong: list[Problem] = []
    around, layer = _Around(), None
    try:
        around = _around(entry, names, _AROUND)
    except InputError as error:
        wrong += error.problems
    # What comes as often as the batch says is never alone.
    alone = "count" not in entry
    try:
        follow = wiring.sizes(OPS[op], read, sizes) if wiring and alone else {}
        layer = _form_of(op).build({**sizes, **follow}, {NAMES: names})
    except InputError as error:
        found = wiring.causes(error.problems, OPS[op], read, sizes, alone) if wiring else error.problems
        wrong = [*found, *wrong]
    if around.biases and OPS[op].unit != "array":
        says = f"{op} has no biases; leave it out, or write an add whose other operand is one for each channel"
        wrong.append(Problem(says, BIASES))
    if wrong:
        raise InputError(wrong)
    if layer is None:
        # Nothing is wrong but what it reads, of which is told there.
        if wiring:
            wiring.lose(entry.get("name"))
        return Read(())
    if wiring and alone:
        wiring.check(layer, read, sizes)
    layers = (
        (layer,)
        if around.count == 1
        else tuple(replace(layer, name=each) for each in numbered(layer.name, around.count))
    )
    if wiring:
        wiring.add(layer.name, layers, alone)
    # Of several, each reads a part.
    sources = tuple(each.source if alone else each.source._replace(direct=False) for each in read)
    return Read(layers, around.lowering, sources, around.biases)


@validated
class _Around:
    """What an entry of a file says beside its operation."""

    count: Annotated[int, whole(MOST_LAYERS)] = 1
    lowering: Annotated[str | None, Name()] = None
    biases: Annotated[bool, Truth()] = False


_AROUND = ("count", LOWERING, BIASES, INPUTS)
_AROUND_FORM = Form(_Around)


@cache
def _form_of(op: str) -> Form[Any]:
    """How files write an entry of an operation."""
    return Form(FREE[op], f" for {op}", ["op", INPUTS]) if op in FREE else Form(OPS[op], f" for {op}", ["op", *_AROUND])


def _around(entry: Mapping[str, object], names: Mapping[str, int], keys: Iterable[str]) -> _Around:
    said = {key: entry[key] for key in keys if key in entry and key != INPUTS}
    return _AROUND_FORM.build(said, {NAMES: names})


def numbered(name: str, count: int) -> Iterator[str]:
    """The names of the layers of an entry that comes `count` times."""
    return (f"{name}_{number}" for number in range(1, count + 1))


def count_of(entry: object, names: Mapping[str, int]) -> int:
    """The count of an entry, 1 where it is none: what is wrong with it is told with the entry."""
    try:
        return _around(entry, names, ["count"]).count if isinstance(entry, Mapping) else 1
    except InputError:
        return 1


# ---- what other tools call operations, and how they are written here

_GEMM = "write {name: fc, op: gemm, m: batch, n: 1000, k: 512}: m rows of input, n outputs, k inputs"
_CONV = "write op: conv2d, with in_channels, in_height, in_width, out_channels and kernel"
_SIZES = "in_channels: 32, in_height: 56, in_width: 56, out_channels: 32, kernel: 3, padding: 1, groups: 32"
_ELSEWHERE = (
    (r"conv\w*transpose\w*[13]d", "write the product it is: op: gemm, m: input positions of all images, "
     "k: in_channels, n: out_channels x kernel elements"),
    (r"deform|^dcn", "write op: deform_conv2d, with in_channels, in_height, in_width, out_channels, kernel and, with "
     "masks, modulated: true"),
    (r"conv\w*transpose|transposed?\w*conv|deconv", "write op: conv_transpose2d, with in_channels, in_height, "
     "in_width, out_channels and kernel"),
    (r"conv\w*3d", "write the product it is: op: gemm, m: output positions of all images, k: in_channels x kernel "
     "elements, n: out_channels"),
    (r"depthwise|dwconv|dconv", f"write a group a channel: {{name: dw, op: conv2d, {_SIZES}}}"),
    (r"conv\w*1d", "write op: conv1d, with in_channels, in_length, out_channels and kernel"),
    (r"pointwise", f"{_CONV}: 1"),
    (r"conv", _CONV),
    (r"attention|sdpa", "write its products: op: gemm, m: tokens, n: tokens, k: size of a head, and the like"),
    (r"lstm|gru|rnn", "write its gates as a product: op: gemm, m: batch, n: gates x hidden, k: inputs + hidden"),
    (r"matmul|linear|dense|einsum|innerproduct|fullyconnected|addmm|bmm|matrix|^(fc|mm|dot|mlp|projection)$", _GEMM),
    (r"pool", "write op: pool2d, with kind: max or average, channels, in_height, in_width and kernel"),
    (r"relu6|hardtanh|clamp", "write op: clip, with channels, height, width, min and max"),
    (r"leaky", "write op: leaky_relu, with channels, height, width and slope"),
    (r"hardsigmoid", "write op: hard_sigmoid, with channels, height and width"),
    (r"hard\w*swish|hswish", "write op: hard_swish, with channels, height and width"),
    (r"^relu$", "write op: relu, with channels, height and width"),
    (r"batchnorm|^bn", "write op: scale_shift, with channels, height and width, or leave it out behind a convolution"),
    (r"gelu", "write op: gelu, with channels, height and width; approximate: tanh for that form"),
    (r"silu|swish", "write op: silu, with channels, height and width"),
    (r"logsigmoid|logsoftmax", "leave this layer out; it takes no time in this version"),
    (r"softmax", "write op: softmax, with channels (of a row) and images (the rows)"),
    (r"layernorm", "write op: layer_norm, with channels (of a row) and images (the rows)"),
    (r"sigmoid", "write op: sigmoid, with channels, height and width"),
    (r"tanh$", "write op: tanh, with channels, height and width"),
    (r"sqrt$", "write op: sqrt, with channels, height and width"),
    (r"^pow(er)?$|square", "write op: power, with channels, height, width and exponent: 2 or 3"),
    (r"^div(ide)?$", "write op: div, with channels, height and width"),
    (r"residual|eltwise|elementwise|^(plus|sum)$", "write op: add, with channels, height and width"),
    (r"lrn|localresponse", "write op: lrn, with channels, height, width, size, alpha, beta and bias"),
    (r"pixelshuffle|depthtospace|spacetodepth", "leave this layer out; it takes no time in this version"),
    (r"shuffle", "write op: channel_shuffle, with channels, height, width and groups"),
    (r"permute|transpose", "write op: transpose, with channels, height, width and order, such as [width, height, "
     "channels, images]"),
    (r"upsampl|interpolate|resize", "write op: upsample, with channels, height, width and scale: the nearest is taken"),
    (r"^split$|^narrow$|^chunk$", "write op: slice for each part, with channels, height, width, axis, start and stop"),
    (r"^\w*pad(ding)?(2d)?$", "write op: pad, with channels, height, width and padding"),
    (r"relu|^s?elu|tanh|norm|^bn|dropout|concat|flatten|reshape|"
     r"embedding|activation|identity|squeeze|quantize|im2col|"
     r"^(mean|max|min|cat|gather)$",
     "leave this layer out; it takes no time in this version"),
)  # fmt: skip
"""Part of a name, small letters and digits only, and what to do; the first that fits."""


def instead_of(op: str) -> str:
    """ "; " and what to write for another tool's operation, or an empty string where it is not known."""
    word = re.sub(r"[^a-z0-9]", "", re.split(r"[.:]", op.casefold())[-1])
    return next((f"; {instead}" for part, instead in _ELSEWHERE if re.search(part, word)), "")
