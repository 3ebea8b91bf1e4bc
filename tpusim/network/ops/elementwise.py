"""Ops that make each element from the one at the same place of a map: sums of maps, activations, functions.

Ops that have no fields of their own are rows of a table, from which their classes are made: to add one is a row here,
one in machines/tpu/program/operations.py for what the machine does, and one in reference/ for what is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Choice, Name, Reader, Real, Truth, real, validated, whole, written
from tpusim.network.ops.op import (
    MOST_CHANNELS,
    OFMAP,
    Channels,
    Images,
    Index,
    KernelAxis,
    Shape,
    Size,
    TapWindow,
    VectorOp,
    kernel_axes,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST = 3.4028234663852886e38
"""The largest number of float32."""
MOST_POWER = 3
"""The highest power: networks use squares and cubes; whole numbers of four bits, cubed, are exact."""

Other: TypeAlias = Literal["each", "map", "channel", "image", "pixel", "number"]

KEPT: Mapping[str, tuple[bool, bool, bool, bool]] = {
    "each": (True, True, True, True),
    "map": (True, True, True, False),
    "channel": (True, False, False, False),
    "image": (True, False, False, True),
    "pixel": (False, True, True, True),
    "number": (False, False, False, False),
}
"""The axes of [channel, row, col, image] along which the other operand has own elements; it has one along the rest."""


def above_zero(such: float) -> Reader:
    """A finite number above zero; `such` is one to write instead of others."""

    def read(value: object) -> float:
        if (number := real(value)) <= 0:
            raise InputError(f"{number} is not above zero; write one such as {such}")
        return number

    return Reader(read, "a number above zero")


@validated
class MapOp(VectorOp):
    """An op of the vector unit on maps of channels x height x width elements, one for each image.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        channels: channels of the map.
        height: rows of the map.
        width: columns of the map.
        images: number of maps, such as the rows of a product; 0: as many as images of the batch.
    """

    spatial: ClassVar[bool] = False
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "height": 1, "width": 2, "images": 3}
    beside: ClassVar[Mapping[str, Other]] = {}
    """The operands beside the ifmap, each with what it has a number for."""

    name: Annotated[str, Name(), written("map1")]
    channels: Annotated[Channels, written(64)]
    height: Annotated[Size, written(56)] = 1
    width: Annotated[Size, written(56)] = 1
    images: Annotated[Images, written("batch*197")] = 0

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Return windows of one element."""
        return kernel_axes((self.height, self.width), (1, 1), (1, 1), (1, 1), (0, 0))

    @property
    def windows(self) -> tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]:
        return (TapWindow(range(1), 1),) * self.height, (TapWindow(range(1), 1),) * self.width

    @property
    def map_text(self) -> str:
        """The map that the op reads, in short."""
        return f"{self.height}x{self.width}x{self.channels}" + (f" n{self.images}" if self.images else "")

    def map(self, batch: int) -> Shape:
        """Return the shape of the input."""
        return self.channels, self.height, self.width, self.images or batch

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: the output is as large as the input."""
        whole = self.map(batch)
        others = {name: _kept(whole, kind) for name, kind in self.beside.items()}
        return {"ifmap": whole, **others, OFMAP: whole}

    def terms(self, batch: int) -> int:
        """Return 1: no sum grows with the layer."""
        return 1


@validated
class Pointwise(MapOp):
    """An op that makes an element from each element."""

    grammar: ClassVar[str] = "rows x columns x channels"

    @property
    def operation(self) -> str:
        """The machine's operation: the name of the op."""
        return self.op

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64" is rows x cols x channels, n the images where these are not the batch."""
        return self.map_text

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Name an element; by rows and columns of a product, where the map is one."""
        return (("row", "col"), (index[3], index[0])) if self.images and self.height * self.width == 1 else (
            ("channel", "row", "col", "image"), index
        )  # fmt: skip


def _kept(whole: Shape, kind: Other) -> Shape:
    """Return the shape of an operand that has own elements for that; it has one along the other axes, which all
    elements of the map there share.
    """
    channels, rows, cols, images = (size if kept else 1 for size, kept in zip(whole, KEPT[kind], strict=True))
    return channels, rows, cols, images


@validated
class Arithmetic(Pointwise):
    """A sum, difference, product or quotient of two maps.

    Attributes:
        other: what the other operand has a number for: `each` element; an element of a `map` that all images share; a
            `channel` (a bias); a channel of an `image` (a gate); a `pixel` of all channels; or one `number` in all.
    """

    grammar: ClassVar[str] = "rows x columns x channels, and what the other operand has a number for if not for each"

    other: Annotated[Other, Choice()] = "each"

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64 channel" where the other operand has a number a channel."""
        return self.map_text if self.other == "each" else f"{self.map_text} {self.other}"

    @property
    def beside(self) -> Mapping[str, Other]:  # type: ignore[override]
        return {"other": self.other}


@validated
class PairOp(Pointwise):
    """An op of two maps of one size: of a gate, and what it lets through; of the gradient of an activation's result,
    and what tells its slope; of weights, and what is known of their gradients.
    """

    beside: ClassVar[Mapping[str, Other]] = {"other": "each"}


@validated
class Chosen(Pointwise):
    """A choice between two maps of one size, by a third.

    Attributes:
        condition: what the condition has a number for, as `other` of a sum says it: `each` element, or fewer.
    """

    grammar: ClassVar[str] = "rows x columns x channels, and what the condition has a number for if not for each"

    condition: Annotated[Other, Choice()] = "each"

    @property
    def text(self) -> str:
        """The shape in short: "1x5x60 pixel" where the condition has a number a pixel."""
        return self.map_text if self.condition == "each" else f"{self.map_text} {self.condition}"

    @property
    def beside(self) -> Mapping[str, Other]:  # type: ignore[override]
        return {"other": "each", "condition": self.condition}


@validated
class LeakyRelu(Pointwise):
    """Every element above zero unchanged, any other times `slope`.

    Attributes:
        slope: factor of elements below zero, from 0 to 1.
    """

    op: ClassVar[str] = "leaky_relu"

    slope: Annotated[float, Real()] = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.slope <= 1:
            raise InputError(Problem(f"{self.slope} is no slope from 0 to 1; write one such as 0.1", "slope"))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (self.slope,)


@validated
class Clip(Pointwise):
    """Every element limited to the range from `min` to `max`.

    Attributes:
        min: least that is left.
        max: most that is left.
    """

    op: ClassVar[str] = "clip"

    min: Annotated[float, Real()] = -LARGEST
    max: Annotated[float, Real()] = LARGEST

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise InputError(Problem(f"min {self.min:g} is above max {self.max:g}; exchange them", "min"))

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.min, self.max


@validated
class Power(Pointwise):
    """Each element times itself: its square or its cube.

    Attributes:
        exponent: 2 for the square, 3 for the cube.
    """

    op: ClassVar[str] = "power"
    grammar: ClassVar[str] = "rows x columns x channels, exponent"

    exponent: Annotated[int, whole(MOST_POWER, 2)] = 2

    @property
    def text(self) -> str:
        """The shape in short: "1x4x129 ^2" of a square."""
        return f"{self.map_text} ^{self.exponent}"

    @property
    def operation(self) -> str:
        """The machine's operation: square and cube have one each."""
        return f"power_{self.exponent}"


@validated
class HardSigmoid(Pointwise):
    """`alpha` times the element, plus `beta`, clipped to the range from 0 to 1.

    Attributes:
        alpha: factor of the element.
        beta: number that is added.
    """

    op: ClassVar[str] = "hard_sigmoid"

    alpha: Annotated[float, Real()] = 0.2
    beta: Annotated[float, Real()] = 0.5

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.alpha, self.beta


@validated
class HardSwish(Pointwise):
    """Each element times its hard sigmoid of alpha 1/6 and beta 1/2."""

    op: ClassVar[str] = "hard_swish"

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return 1 / 6, 0.5


@validated
class Gelu(Pointwise):
    """Each element times the share of the normal distribution below it.

    Attributes:
        approximate: how the share is worked out: by the error function (`none`), or by `tanh`.
    """

    op: ClassVar[str] = "gelu"
    exact: ClassVar[bool] = False

    approximate: Annotated[Literal["none", "tanh"], Choice()] = "none"

    @property
    def operation(self) -> str:
        """The machine's operation: the form by tanh has its own, and so has its gradient."""
        return self.op if self.approximate == "none" else self.op.replace("gelu", "gelu_tanh")

    @property
    def text(self) -> str:
        """The shape in short: "1x1x3072 tanh" where it is approximated."""
        return self.map_text + (" tanh" if self.approximate == "tanh" else "")


@validated
class SoftCap(Pointwise):
    """`cap` times the hyperbolic tangent of the element over `cap`: small ones hardly changed, none beyond the cap.

    Source: Gemma 2, 2024 (arXiv:2408.00118), section 2, where it limits logits and scores of attention.

    Attributes:
        cap: number above zero that the magnitude of no result exceeds.
    """

    op: ClassVar[str] = "soft_cap"
    exact: ClassVar[bool] = False

    cap: Annotated[float, above_zero(50.0)] = 50.0

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return (self.cap,)


_COS, _SIN = "cos", "sin"


@validated
class Rotary(MapOp):
    """Rotary position embedding of queries or keys, whose columns are tokens: each channel and the one half of all
    channels on are a point that turns by the token's position times a frequency.

    With half = channels / 2, out[c] = x[c] cos[c, t] + x[(c + half) % channels] sin[c, t]. Channels c and c + half turn
    by (start + t) base^(-2 c / channels); their sine is negative in the first half. Both tables, [channel, 1, token,
    1], are read from HBM. So is the other half of the channels, which is in other lanes than the first: every element
    comes twice.

    Source: Su et al. 2021, arXiv:2104.09864; the halves are those of Llama.

    Attributes:
        channels: channels of a token, those of a head; an even number.
        height: rows of the map, which have the same tokens each.
        width: tokens, one behind another.
        base: number above zero whose powers are the wavelengths, over 2 pi tokens.
        start: position of the first token, such as the number of those that a decoder has written.
        back: whether points turn back by as much: sines change their sign. That is the op's own gradient.
    """

    op: ClassVar[str] = "rotary"
    grammar: ClassVar[str] = "rows x columns x channels, first position if not 0, back if points turn back"
    exact: ClassVar[bool] = False
    operation: ClassVar[str] = "rotary"
    """The machine's operation, of an element, its partner, a cosine and a sine."""

    base: Annotated[float, above_zero(10000.0)] = 10000.0
    start: Annotated[int, whole(MOST_CHANNELS, 0)] = 0
    back: Annotated[bool, Truth()] = False

    def __post_init__(self) -> None:
        # Pairs are one half of the channels apart, so there must be two halves.
        if self.channels % 2:
            raise InputError(Problem(f"{self.channels} channels have no halves; write an even number", "channels"))

    @property
    def partner(self) -> int:
        return self.channels // 2

    @property
    def text(self) -> str:
        """The shape in short: "1x128x64 n12 from 512" of 128 tokens, the first at position 512."""
        return self.map_text + (f" from {self.start}" if self.start else "") + " back" * self.back

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes, with two tables of a number for each channel of a token."""
        table = self.channels, 1, self.width, 1
        return {"ifmap": self.map(batch), _COS: table, _SIN: table, OFMAP: self.map(batch)}

    def terms(self, batch: int) -> int:
        """Return 2: products of the element and of its partner."""
        return 2

    @property
    def fixed(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        """Cosines and signed sines, in float32."""
        return {_COS: lambda _: self._table("cos"), _SIN: lambda _: self._table("sin")}

    def _table(self, function: str) -> NDArray[np.float32]:
        import numpy as np

        frequencies = self.base ** (-2.0 * np.arange(self.partner) / self.channels)
        # Angles in float64: at far positions float32 would be off by whole degrees.
        found = getattr(np, function)(np.outer(frequencies, self.start + np.arange(self.width)))
        # The sign of the turn is in the table, so that the machine only multiplies and adds.
        first, second = (found, found) if function == "cos" else (found, -found) if self.back else (-found, found)
        both = np.concatenate([first, second])
        return both.astype(np.float32).reshape(self.channels, 1, self.width, 1)


class OpRow(NamedTuple):
    """An op without fields of its own.

    Attributes:
        kind: base class of the op.
        gloss: the op's result, in a line.
        onnx: the operator of ONNX that it is, if there is one of one operand.
        exact, positive: as in Op.
        beside: as in MapOp, where the base class does not say it.
    """

    kind: type[Pointwise]
    gloss: str
    onnx: str = ""
    exact: bool = True
    positive: bool = False
    beside: Mapping[str, Other] | None = None


_OTHER: Mapping[str, Other] = {"other": "each"}
_LINE: Mapping[str, Other] = {"scale": "channel", "shift": "channel"}

ROWS = {
    "add": OpRow(Arithmetic, "The ifmap and the other operand, added."),
    "sub": OpRow(Arithmetic, "The ifmap less the other operand."),
    "rsub": OpRow(Arithmetic, "The other operand less the ifmap."),
    "mul": OpRow(Arithmetic, "The ifmap times the other operand."),
    "div": OpRow(Arithmetic, "The ifmap over the other operand.", exact=False),
    "rdiv": OpRow(Arithmetic, "The other operand over the ifmap.", exact=False),
    "maximum": OpRow(Arithmetic, "The larger of the ifmap and the other operand."),
    "minimum": OpRow(Arithmetic, "The smaller of the ifmap and the other operand."),
    "prelu": OpRow(Arithmetic, "The ifmap; where it is below zero, times the other operand."),
    "where": OpRow(Chosen, "The ifmap where the condition is not zero; elsewhere the other operand."),
    "copy": OpRow(
        Pointwise, "Each element as it is, from HBM and back: to lay a map out anew, or to join some to one."
    ),
    "relu": OpRow(Pointwise, "What is above zero; zero for the rest.", "Relu"),
    "exp": OpRow(Pointwise, "e to the power of the element.", "Exp", exact=False),
    "sqrt": OpRow(Pointwise, "The root of the element, which is not below zero.", "Sqrt", exact=False, positive=True),
    "tanh": OpRow(Pointwise, "The hyperbolic tangent.", "Tanh", exact=False),
    "erf": OpRow(Pointwise, "The error function.", "Erf", exact=False),
    "sigmoid": OpRow(Pointwise, "1 / (1 + exp(-x)).", "Sigmoid", exact=False),
    "softplus": OpRow(Pointwise, "log(1 + exp(x)).", "Softplus", exact=False),
    "silu": OpRow(Pointwise, "The element times its sigmoid; also called swish.", exact=False),
    # Shazeer 2020, arXiv:2002.05202.
    "swiglu": OpRow(PairOp, "The other operand times the silu of the ifmap, its gate.", exact=False),
    "geglu": OpRow(PairOp, "The other operand times the gelu, by tanh, of the ifmap, its gate.", exact=False),
    "relu_gradient": OpRow(PairOp, "The ifmap where the other operand, what relu made or read, is above zero; or 0."),
    "sigmoid_gradient": OpRow(PairOp, "The ifmap times y (1 - y); the other operand is y, what the sigmoid made."),
    "tanh_gradient": OpRow(PairOp, "The ifmap times 1 - y y; the other operand is y, what tanh made."),
    "silu_gradient": OpRow(PairOp, "The ifmap times the slope of silu at the other operand.", exact=False),
    "scale_shift": OpRow(Pointwise, "The ifmap times the channel's scale, plus the channel's shift.", beside=_LINE),
    "masked": OpRow(
        Pointwise,
        "The ifmap where the other map times the channel's scale, plus its shift, is above zero; elsewhere zero.\n\n"
        "It is the gradient of a relu of that scaled map, which need not be stored.",
        beside={**_OTHER, **_LINE},
    ),
    "leaky_relu_gradient": OpRow(
        LeakyRelu,
        "The ifmap where the other operand, what the leaky relu made or read, is above zero; elsewhere times `slope`.",
        beside=_OTHER,
    ),
    "clip_gradient": OpRow(
        Clip,
        "The ifmap where the other operand, what the clip made or read, lies between `min` and `max`; elsewhere zero.",
        beside=_OTHER,
    ),
    "gelu_gradient": OpRow(Gelu, "The ifmap times the slope of gelu at the other operand.", exact=False, beside=_OTHER),
    # Of a batch normalization, x * scale + shift of each channel, and its way back.
    "batch_norm_shift": OpRow(
        Pointwise,
        "`shift` less the ifmap, a mean, times `scale`: what is added once a map has been multiplied by the scale.",
        beside={"scale": "each", "shift": "each"},
    ),
    "batch_norm_gradient": OpRow(
        Pointwise,
        "The ifmap times `scale`, plus the other map times `slope`, plus `offset`, each a number for the channel.\n\n"
        "The ifmap is the gradient of the result of a batch normalization, the other map what that has read.",
        beside={**_OTHER, **dict.fromkeys(("scale", "slope", "offset"), "channel")},
    ),
    "scale_shift_relu": OpRow(
        Pointwise,
        "What is above zero of the ifmap times the channel's scale, plus the channel's shift; zero for the rest.",
        beside=_LINE,
    ),
    "centred_total": OpRow(
        Pointwise,
        "A total of products, less the ifmap, the mean of one factor, times the `total` of the other.",
        beside={"total": "each", "products": "each"},
    ),
}
"""Pointwise ops by their names in files. The class of each has a matching name: `sqrt` is Sqrt."""


def class_name(op: str) -> str:
    """Return the name of the class of an op."""
    return "".join(map(str.capitalize, op.split("_")))


def __getattr__(name: str) -> Any:
    """Return the class of a row, made on first use."""
    op = next((op for op in ROWS if class_name(op) == name), None)
    if op is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    row = ROWS[op]
    told = {"op": op, "exact": row.exact, "positive": row.positive}
    told |= {} if row.beside is None else {"beside": row.beside}
    # Made on first use: a run needs few of them, and pydantic takes a while for each class.
    made: Any = validated(type(name, (row.kind,), {**told, "__module__": __name__, "__doc__": row.gloss}))
    globals()[name] = made
    return made
