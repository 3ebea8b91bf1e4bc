"""Ops that sum up over channels: those of whole rows, and local response normalization."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Name, Real, Truth, validated, whole, written
from tpusim.network.ops.elementwise import MapOp, above_zero
from tpusim.network.ops.op import MOST_CHANNELS, OFMAP, Channels, Images, Index, KernelAxis, Op, Shape, TapWindow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stage(NamedTuple):
    """A stage of a vector unit's work on the elements of a row.

    Attributes:
        operation: name of the operation, as machines know it. Its operands are some elements of a row, and one number
            of the row from each stage that is `known`. An element has a number from each of the `maps`, and one from
            each source that is `shared` by all rows; where an output is made, shared numbers come behind known ones.
        joins: what makes one of two such numbers; empty: each is an output, of one element.
        ends: what makes the stage's one number a row of those that are left.
        coefficients: of what ends it, or of the operation on one element.
        given: a source of one number a row, which is the stage's; nothing is done then. Such stages come first.
    """

    operation: str
    known: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()
    joins: str = ""
    ends: str = ""
    coefficients: tuple[float, ...] = ()
    given: str = ""
    maps: tuple[str, ...] = ("ifmap",)


Each: TypeAlias = Literal["element", "channel", "row"]
"""What a tensor has a number for."""


@validated
class RowOp(Op):
    """An op whose outputs depend on a whole row of channels.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        channels: elements of a row.
        images: number of rows; 0: as many as images of the batch.
    """

    unit: ClassVar[Literal["array", "vector"]] = "vector"
    spatial: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = True
    counted_by: ClassVar[Literal["image", "row"]] = "row"
    grammar: ClassVar[str] = "rows x elements of each"
    sized_by: ClassVar[Mapping[str, int]] = {"channels": 0, "images": 3}
    beside: ClassVar[Mapping[str, Each]] = {}
    """The operands beside the ifmap, each with what it has a number for."""
    makes: ClassVar[Each] = "element"
    """What the ofmap has a number for."""

    name: Annotated[str, Name(), written("rows1")]
    channels: Annotated[Channels, written(768)]
    images: Annotated[Images, written("batch*128")] = 0

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the work on a row."""

    @property
    def text(self) -> str:
        """The shape in short: "1024x768", or "batch x 1000" where there are as many rows as images in a batch."""
        return self.rows_text

    @property
    def rows_text(self) -> str:
        """The rows that the op reads, in short."""
        return f"{self.images}x{self.channels}" if self.images else f"batch x {self.channels}"

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: the output is as large as the input, or has a number for each row."""
        whole = channels, _, _, rows = self.rows(batch)
        of: Mapping[Each, Shape] = {"element": whole, "channel": (channels, 1, 1, 1), "row": (1, 1, 1, rows)}
        return {"ifmap": whole, **{name: of[each] for name, each in self.beside.items()}, OFMAP: of[self.makes]}

    def rows(self, batch: int) -> Shape:
        """Return the shape of the input."""
        return self.channels, 1, 1, self.images or batch

    def terms(self, batch: int) -> int:
        """Return the channels, as a row is summed up."""
        return self.channels

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        return ("row", "element"), (index[3], index[0])


_POWERS = (
    Stage("maximum", joins="maximum", ends="maximum"),
    # The largest element is taken off first: no power overflows then, and the quotient stays the same.
    Stage("exp_sum", (0,), joins="add", ends="reciprocal_sum"),
)
"""Stages that make the largest element of each row, and one over the sum of powers of elements less that."""


_KEYS, _LAST, _FIRST = "keys", "last_key", "first_key"


@validated
class Softmax(RowOp):
    """e to the power of each element less the largest of its row, over the sum of these.

    With `queries` it has the causal mask of attention: elements of a row are scores of keys, and those of keys that a
    query does not see become zero. The vector unit compares a number for each key with the last key that the row sees,
    and perhaps the first, in each stage. These numbers are read from HBM once; code for TPUs makes them on chip.

    Attributes:
        queries: rows that are the queries of one mask, in turn: row r is query r % queries. Query i of n sees the first
            (keys - n + i + 1) keys, counted from 0. 0: no mask.
        window: most keys that a query sees, the last ones of those. 0: all.
    """

    op: ClassVar[str] = "softmax"
    exact: ClassVar[bool] = False
    grammar: ClassVar[str] = "rows x elements of each, then q queries and w keys of the window where there is a mask"

    queries: Annotated[int, whole(MOST_CHANNELS, 0), written(128)] = 0
    window: Annotated[int, whole(MOST_CHANNELS, 0), written(64)] = 0

    def __post_init__(self) -> None:
        if self.queries > self.channels:
            says = f"the first of {self.queries} queries would see none of {self.channels} keys"
            raise InputError(Problem(f"{says}; write channels {self.channels} at most", "queries"))
        if self.window and not self.queries:
            raise InputError(Problem("a window is one of a mask; write queries as well", "window"))

    @property
    def text(self) -> str:
        """The shape in short: "4096x128 q128 w32" where rows are queries that see 32 keys at most."""
        mask = f" q{self.queries}" + (f" w{self.window}" if self.window else "")
        return self.rows_text + (mask if self.queries else "")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages; powers are worked out twice, rather than kept: so does XLA's code for TPUs."""
        if not self.queries:
            return *_POWERS, Stage("exp_scaled", (0, 1))
        # Bounds come from HBM, a number a row; stages behind them refer to them by their places.
        bounds = tuple(Stage("", given=name) for name in self._bounds)
        ends, (most, part) = tuple(range(len(bounds))), (len(bounds), len(bounds) + 1)
        return (
            *bounds,
            Stage("seen_maximum", ends, (_KEYS,), joins="maximum", ends="maximum"),
            Stage("seen_exp_sum", (*ends, most), (_KEYS,), joins="add", ends="reciprocal_sum"),
            Stage("seen_exp_scaled", (*ends, most, part), (_KEYS,)),
        )

    @property
    def _bounds(self) -> tuple[str, ...]:
        return (_LAST, _FIRST) if self.window else (_LAST,)

    @property
    def beside(self) -> Mapping[str, Each]:  # type: ignore[override]
        return {_KEYS: "channel", **dict.fromkeys(self._bounds, "row")} if self.queries else {}

    @property
    def fixed(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        """The numbers of keys, from zero on, and of the last key and the first that each row sees."""
        if not self.queries:
            return {}

        def keys(_: int) -> NDArray[np.float32]:
            import numpy as np

            return np.arange(self.channels, dtype=np.float32).reshape(-1, 1, 1, 1)

        def last(batch: int) -> NDArray[np.float32]:
            import numpy as np

            # The last of n queries sees all keys, query i the first (keys - n + i + 1).
            queries = np.arange(self.images or batch, dtype=np.float32) % self.queries
            return (self.channels - self.queries + queries).reshape(1, 1, 1, -1)

        bounds = {_LAST: last, _FIRST: lambda batch: last(batch) - (self.window - 1)}
        return {_KEYS: keys, **{name: bounds[name] for name in self._bounds}}


@validated
class LayerNorm(RowOp):
    """Each element less the mean of its row, over the root of the row's variance; then times the channel's scale, and
    the shift of the channel added.

    Attributes:
        epsilon: number above zero that is added to the variance.
    """

    op: ClassVar[str] = "layer_norm"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = {"scale": "channel", "shift": "channel"}

    epsilon: Annotated[float, above_zero(1e-5)] = 1e-5

    @property
    def stages(self) -> tuple[Stage, ...]:
        return *self._statistics("ifmap"), Stage("normalize", (0, 1), ("scale", "shift"))

    def _statistics(self, rows: str) -> tuple[Stage, Stage]:
        """Return the stages that make the mean of each row, and one over the root of its variance."""
        # Deviations are squared, not elements: a difference of two large sums would lose digits.
        part = 1 / self.channels
        return (
            Stage("add", joins="add", ends="mean", coefficients=(part,), maps=(rows,)),
            Stage(
                "squares_sum",
                (0,),
                joins="add",
                ends="reciprocal_root",
                coefficients=(part, self.epsilon),
                maps=(rows,),
            ),
        )


@validated
class RmsNorm(RowOp):
    """Each element over the root of the mean of its row's squares; then times the channel's scale.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.

    Attributes:
        epsilon: number above zero that is added to the mean of the squares.
    """

    op: ClassVar[str] = "rms_norm"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = {"scale": "channel"}

    epsilon: Annotated[float, above_zero(1e-5)] = 1e-6

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._root("ifmap"), Stage("mul", (0,), ("scale",))

    def _root(self, rows: str) -> Stage:
        """Return the stage that makes one over the root of the mean of each row's squares."""
        squares = (1 / self.channels, self.epsilon)
        return Stage("squares", joins="add", ends="reciprocal_root", coefficients=squares, maps=(rows,))


@validated
class LayerNormGradient(LayerNorm):
    """The gradient of what a layer normalization reads: of the ifmap, the gradient of its result; of the other operand,
    what it has read; and of the channels' scale.

    Of g, the ifmap times the scale, and the other operand x with mean m and r, one over its root, an element is
    r (g - mean(g) - (x - m) r r mean(g (x - m))).
    """

    op: ClassVar[str] = "layer_norm_gradient"
    beside: ClassVar[Mapping[str, Each]] = {"other": "element", "scale": "channel"}

    @property
    def stages(self) -> tuple[Stage, ...]:
        mean: dict[str, Any] = {"joins": "add", "ends": "mean", "coefficients": (1 / self.channels,)}
        return (
            *self._statistics("other"),
            Stage("sum_of_products", (), ("scale",), **mean),
            Stage("centred_triples", (0,), ("scale",), **mean, maps=("ifmap", "other")),
            Stage("normalize_gradient", (0, 1, 2, 3), ("scale",), maps=("ifmap", "other")),
        )


@validated
class RmsNormGradient(RmsNorm):
    """The gradient of what `rms_norm` reads: of the ifmap, the gradient of its result; of the other operand, what it
    has read; and of the channels' scale.

    Of g, the ifmap times the scale, and the other operand x with r, one over the root, an element is
    r (g - x r r mean(g x)).
    """

    op: ClassVar[str] = "rms_norm_gradient"
    beside: ClassVar[Mapping[str, Each]] = {"other": "element", "scale": "channel"}

    @property
    def stages(self) -> tuple[Stage, ...]:
        both, part = ("ifmap", "other"), (1 / self.channels,)
        return (
            self._root("other"),
            Stage("sum_of_triples", (), ("scale",), joins="add", ends="mean", coefficients=part, maps=both),
            Stage("rms_gradient", (0, 1), ("scale",), maps=both),
        )


@validated
class CrossEntropy(RowOp):
    """The sum over each row of the other operand's elements, labels, times minus the logarithms of the ifmap's softmax.

    For labels that are one at the right class and zero elsewhere it is the loss of the row.
    """

    op: ClassVar[str] = "cross_entropy"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = {"other": "element"}
    makes: ClassVar[Each] = "row"
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("maximum", joins="maximum", ends="maximum"),
        Stage("exp_sum", (0,), joins="add", ends="log_sum"),
        Stage("surprise_sum", (0, 1), joins="add", ends="add", maps=("ifmap", "other")),
    )


@validated
class CrossEntropyGradient(RowOp):
    """The softmax of each row less the other operand, labels, times `factor`: the gradient of the ifmap, the logits.

    Attributes:
        factor: factor of all elements, such as one over the rows where the loss is a mean.
    """

    op: ClassVar[str] = "cross_entropy_gradient"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = {"other": "element"}

    factor: Annotated[float, Real()] = 1.0

    @property
    def stages(self) -> tuple[Stage, ...]:
        last = Stage("softmax_gradient", (0, 1), coefficients=(self.factor,), maps=("ifmap", "other"))
        return *_POWERS, last


@validated
class SoftmaxGradient(RowOp):
    """The other operand, what a softmax has made, times the ifmap less its mean over the row by these shares: the
    gradient of what the softmax has read, where the ifmap is that of its result.
    """

    op: ClassVar[str] = "softmax_gradient"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = {"other": "element"}
    stages: ClassVar[tuple[Stage, ...]] = (
        Stage("sum_of_products", joins="add", ends="add", maps=("ifmap", "other")),
        Stage("shares_less", (0,), maps=("ifmap", "other")),
    )


@validated
class TopK(RowOp):
    """The largest numbers of each row where they stand, and zero elsewhere: the weights of experts that a router picks.

    Elements are zero or more. Equal elements are one number: with several of them among the `k` largest, more than `k`
    elements are kept.

    Attributes:
        k: numbers that are kept.
        renormalize: whether they are divided by their sum.
    """

    op: ClassVar[str] = "top_k"
    grammar: ClassVar[str] = "rows x elements of each, k numbers that are kept, + if divided by their sum"
    exact: ClassVar[bool] = False
    positive: ClassVar[bool] = True

    k: Annotated[int, whole(8), written(2)] = 2
    renormalize: Annotated[bool, Truth()] = True

    def __post_init__(self) -> None:
        if self.k > self.channels:
            says = f"{self.k} are more than the {self.channels} elements of a row"
            raise InputError(Problem(f"{says}; write {self.channels} at most", "k"))

    @property
    def text(self) -> str:
        """The shape in short: "4096x64 k2+" where the two that are kept are divided by their sum."""
        return f"{self.rows_text} k{self.k}" + ("+" if self.renormalize else "")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages: one for each number, as each is the largest below the one before it."""
        # A vector unit cannot sort, but it can find the largest number below a given one.
        below = (Stage("next_largest", (before,), joins="maximum", ends="maximum") for before in range(self.k - 1))
        largest = Stage("maximum", joins="maximum", ends="maximum"), *below
        if not self.renormalize:
            return *largest, Stage("kept", (self.k - 1,))
        total = Stage("kept_sum", (self.k - 1,), joins="add", ends="reciprocal_sum")
        return *largest, total, Stage("kept_scaled", (self.k - 1, self.k))


@validated
class ReduceMean(RowOp):
    """The mean of each row."""

    op: ClassVar[str] = "reduce_mean"
    makes: ClassVar[Each] = "row"

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (Stage("add", joins="add", ends="mean", coefficients=(1 / self.channels,)),)


_ABOUT: Mapping[str, Each] = {"about": "row"}
"""A number that is given for each row, from which its elements are measured."""


@validated
class SumExp(RowOp):
    """The sum of e to the power of each element less the row's number: the divisor of a softmax."""

    op: ClassVar[str] = "sum_exp"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = _ABOUT
    makes: ClassVar[Each] = "row"
    stages: ClassVar[tuple[Stage, ...]] = Stage("", given="about"), Stage("exp_sum", (0,), joins="add", ends="add")


@validated
class SumSquares(RowOp):
    """The sum of the squares of each element less the row's number: a variance, if that is the mean."""

    op: ClassVar[str] = "sum_squares"
    exact: ClassVar[bool] = False
    beside: ClassVar[Mapping[str, Each]] = _ABOUT
    makes: ClassVar[Each] = "row"
    stages: ClassVar[tuple[Stage, ...]] = Stage("", given="about"), Stage("squares_sum", (0,), joins="add", ends="add")


BETAS = (0.5, 0.75, 1.0)
"""Powers that can be made of reciprocal roots, or a quotient."""


@validated
class Lrn(MapOp):
    """Each element over (`bias` + `alpha` / `size` times a sum of squares) to the power of `beta`, as AlexNet has it.

    Attributes:
        size: channels around the element whose squares are summed up, as far as the map has them.
        alpha: factor of the sum, not below zero.
        beta: power: 0.5, 0.75 or 1.
        bias: number above zero that is added.
    """

    op: ClassVar[str] = "lrn"
    grammar: ClassVar[str] = "rows x columns x channels, channels that are summed up"
    exact: ClassVar[bool] = False
    along_channels: ClassVar[bool] = True
    joining: ClassVar[str] = "squares"
    joining_more: ClassVar[str] = "squares_more"

    size: Channels = 5
    alpha: Annotated[float, Real()] = 1e-4
    beta: Annotated[float, Real()] = 0.75
    bias: Annotated[float, Real()] = 1.0

    def __post_init__(self) -> None:
        problems = []
        if self.alpha < 0:
            problems.append(Problem(f"{self.alpha} is below zero; write one such as 1e-4", "alpha"))
        if self.bias <= 0:
            problems.append(Problem(f"{self.bias} is not above zero; write one such as 1", "bias"))
        if self.beta not in BETAS:
            problems.append(Problem(f"{self.beta} is none of {', '.join(map(str, BETAS))}; write one of these", "beta"))
        if problems:
            raise InputError(problems)

    @property
    def operation(self) -> str:
        """The operation that takes the sum of squares, and the element itself."""
        return f"normalize_by_{100 * self.beta:.0f}"

    @property
    def text(self) -> str:
        """The shape in short: "27x27x96 5" where five channels are summed up."""
        return f"{self.map_text} {self.size}"

    @property
    def axes(self) -> tuple[KernelAxis, KernelAxis]:
        """Return the channels, and an axis with windows of one element."""
        # Of an even size the channel more is the one behind, as in ONNX.
        before, behind = (self.size - 1) // 2, self.size // 2
        along = KernelAxis("channels", self.channels, self.size, 1, 1, (before, behind))
        return along, KernelAxis("width", self.width, 1, 1, 1, (0, 0))

    @property
    def windows(self) -> tuple[tuple[TapWindow, ...], tuple[TapWindow, ...]]:
        """Return the window of each channel, and the window of one element."""
        before = (self.size - 1) // 2
        taps = (
            # The window is cut off at the first and the last channels, where fewer squares are added.
            range(max(0, before - channel), min(self.size, self.channels + before - channel))
            for channel in range(self.channels)
        )
        return tuple(TapWindow(each, self.size) for each in taps), (TapWindow(range(1), 1),)

    def coefficients(self, counted: int) -> tuple[float, ...]:
        return self.alpha / self.size, self.bias

    def terms(self, batch: int) -> int:
        """Return the number of channels summed up."""
        return min(self.size, self.channels)
