"""Entries of workload files that stand for several unlike layers: an attention, and a layer of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import numpy as np
from pydantic import ValidationInfo

from tpusim.base.errors import InputError, Problem
from tpusim.input.form import Name, Reader, Real, Truth, names_of, size, validated, whole, written
from tpusim.input.scalars import show
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.elementwise import Add, Mul, SoftCap, Swiglu
from tpusim.network.ops.flash_attention import FlashAttention, unfit_heads
from tpusim.network.ops.op import MOST_CHANNELS, Channels, Images, Op, Shape
from tpusim.network.ops.rows import Softmax
from tpusim.network.workload import Source, side_by_side

MOST_BLOCKS = 1024
"""Most blocks of an attention's queries."""


class CompositeLayer(NamedTuple):
    """A layer of a composite entry, with what it reads; `ends`: whether its output is one of the entry's."""

    layer: Op
    sources: tuple[Source, ...]
    ends: bool = False


class Composite(ABC):
    """An entry that stands for several layers, whose names begin with its own.

    Attributes:
        reads: names of what it reads, in the order of its file.
    """

    __slots__ = ()

    op: ClassVar[str]
    """The name in files."""
    reads: ClassVar[tuple[str, ...]]
    shared: ClassVar[str] = ""
    """The field that counts what chips may share, of an entry that has `chips`."""
    name: str

    @abstractmethod
    def operands(self, batch: int) -> tuple[int, ...]:
        """Return the number of elements of each of its `reads`."""

    @abstractmethod
    def parts(self, read: Sequence[Source], batch: int) -> Iterator[CompositeLayer]:
        """Yield its layers in order, for what it reads."""

    @abstractmethod
    def outcome(self, batch: int) -> Shape:
        """Return the shape of what it hands on, [channel, row, col, image]."""


def _of(layer: Op) -> Source:
    """Read a layer in another form than it was made in."""
    return Source((layer.name,), direct=False)


@validated
class Attention(Composite):
    """The attention of `heads`: products of queries and keys, the softmax of these scores, and products with values.

    Heads that share keys and values are rows of one product, as in grouped queries (Ainslie et al. 2023,
    arXiv:2305.13245). Queries come in blocks; a block reads no keys that none of its queries sees. The weights
    that make the queries contain the scale of the scores.

    Attributes:
        name: name that the layers' names begin with: NAME.scores, NAME.softmax, NAME.values; of several blocks, each
            with the block's number behind it.
        heads: heads of the queries.
        kv_heads: heads of keys and values; 0: as many as of the queries.
        head: elements of a head.
        queries: tokens of each sequence that ask.
        keys: keys of each sequence; the last of them are those of the queries; 0: as many as queries.
        images: sequences; 0: as many as images of the batch.
        causal: whether a query sees no keys behind its own.
        window: last keys that a query sees at most; 0: all.
        soft_cap: bound of scores, as of `soft_cap`; 0: none.
        blocks: most blocks in which queries come.
        value_head: elements of a head of the values, and of the result; 0: as many as of queries and keys.
        flash: whether it is one layer, NAME.flash, whose scores stay on chip, in place of three in blocks.

    Examples:
        >>> from tpusim.network.composites import Attention
        >>> heads = Attention("attention", heads=32, kv_heads=8, head=128, queries=1, keys=4096)
        >>> [part.layer.text for part in heads.parts([Source(("input",))] * 3, batch=2)]
        ['4x128>4096 g16', '64x4096', '4x4096>128 g16']
    """

    op: ClassVar[str] = "attention"
    reads: ClassVar[tuple[str, ...]] = ("queries", "keys", "values")

    name: Annotated[str, Name(), written("attention")]
    heads: Annotated[Channels, written(32)]
    head: Annotated[Channels, written(128)]
    queries: Annotated[Channels, written("tokens")]
    kv_heads: Annotated[Images, written(8)] = 0
    keys: Annotated[Images, written("context")] = 0
    images: Annotated[Images, written("batch")] = 0
    causal: Annotated[bool, Truth()] = True
    window: Annotated[int, whole(MOST_CHANNELS, 0)] = 0
    soft_cap: Annotated[float, Real()] = 0.0
    blocks: Annotated[int, whole(MOST_BLOCKS)] = 16
    value_head: Annotated[Images, written(512)] = 0
    flash: Annotated[bool, Truth()] = False

    def __post_init__(self) -> None:
        problems = unfit_heads(self.heads, self.kv_heads, self.queries, self.keys)
        for name in ("window", "soft_cap", "value_head") if self.flash else ():
            if getattr(self, name) not in (0, self.head * (name == "value_head")):
                says = "an attention whose scores stay on chip has none of its own"
                problems.append(Problem(f"{says}; leave it out, or write flash: false", name))
        if self.window and not self.causal:
            problems.append(
                Problem("only a causal attention has a window; write causal: true, or leave it out", "window")
            )
        if self.soft_cap < 0:
            problems.append(Problem(f"{self.soft_cap} is below zero; write a bound such as 50", "soft_cap"))
        if problems:
            raise InputError(problems)

    @property
    def _shared(self) -> int:
        """Heads that share keys and values."""
        return self.heads // (self.kv_heads or self.heads)

    @property
    def _of_values(self) -> int:
        """Elements of a head of the values."""
        return self.value_head or self.head

    def operands(self, batch: int) -> tuple[int, ...]:
        sequences = self.images or batch
        vectors = (self.heads // self._shared) * (self.keys or self.queries) * sequences
        return self.heads * self.head * self.queries * sequences, vectors * self.head, vectors * self._of_values

    def outcome(self, batch: int) -> Shape:
        return self.heads * self._of_values, 1, 1, self.queries * (self.images or batch)

    def parts(self, read: Sequence[Source], batch: int) -> Iterator[CompositeLayer]:
        queries, keys, values = (each._replace(direct=False) for each in read)
        if self.flash:
            sizes = self.heads, self.head, self.queries, self.kv_heads, self.keys, self.images, self.causal
            yield CompositeLayer(FlashAttention(f"{self.name}.flash", *sizes), (queries, keys, values), ends=True)
            return
        shared, sequences = self._shared, self.images or batch
        products, before = sequences * self.heads // shared, (self.keys or self.queries) - self.queries
        each = -(-self.queries // self.blocks)
        starts = range(0, self.queries, each)
        for number, start in enumerate(starts, 1):
            asking = min(each, self.queries - start)
            # The last query of the block sees most; the mask of the softmax hides from others what they do not see.
            seen = before + (start + asking if self.causal else self.queries)
            # Keys ahead of the window of the block's first query are seen by none.
            seen -= max(0, before + start + 1 - self.window) if self.window and self.causal else 0
            end = f"_{number}" if len(starts) > 1 else ""
            rows = self.heads * sequences * asking
            scores = Gemm(f"{self.name}.scores{end}", shared * asking, seen, self.head, products)
            yield CompositeLayer(scores, (queries, keys))
            made: Op = scores
            if self.soft_cap:
                made = SoftCap(f"{self.name}.cap{end}", seen, images=rows, cap=self.soft_cap)
                yield CompositeLayer(made, (_of(scores),))
            # A single query sees all keys that are brought for it.
            masked = (asking, self.window if self.window < seen else 0) if self.causal and asking > 1 else (0, 0)
            shares = Softmax(f"{self.name}.softmax{end}", seen, rows, *masked)
            yield CompositeLayer(shares, (_of(made),))
            found = Gemm(f"{self.name}.values{end}", shared * asking, self._of_values, seen, products)
            yield CompositeLayer(found, (_of(shares), values), ends=True)


_SPREADS = "balanced", "skewed"
Spread: TypeAlias = str | tuple[int, ...]


def _spread(given: object, info: ValidationInfo) -> Spread:
    if given in _SPREADS:
        return str(given)
    if isinstance(given, list | tuple) and given:
        return tuple(size(each, 0, MOST_CHANNELS, names_of(info)) for each in given)
    raise InputError(f"{show(given)} spreads no rows; write {' or '.join(_SPREADS)}, or a list of each expert's rows")


@validated
class Experts(Composite):
    """A feed-forward layer of experts, of which each row takes some: gate and up, what the gate lets through, and down,
    expert by expert; then the sum of each row's experts by their weights.

    Experts that no row takes have no layers, and their weights are not read.

    Attributes:
        name: name that the layers' names begin with: NAME.gate_1, NAME.up_1, NAME.act_1, NAME.down_1 of the first
            expert, and NAME.weigh and NAME.sum.
        rows: rows of all experts together, before they are spread.
        channels: elements of a row.
        inner: elements of a row between the products.
        experts: number of experts.
        top: experts that a row takes.
        spread: how rows are spread: `balanced`, evenly; `skewed`, by lot with odds 1, 1/2, 1/3, ... of the experts;
            or the rows of each expert.
        seed: seed of the lots.
        chips: chips that share the experts: each has as many of them, and takes the rows that all chips have for
            these; of chips with unlike rows this is the one with the most.
    """

    op: ClassVar[str] = "experts"
    reads: ClassVar[tuple[str, ...]] = ("rows", "weights")
    shared: ClassVar[str] = "experts"

    name: Annotated[str, Name(), written("experts")]
    rows: Annotated[Channels, written("batch*tokens")]
    channels: Annotated[Channels, written(4096)]
    inner: Annotated[Channels, written(14336)]
    experts: Annotated[int, whole(1024), written(8)]
    top: Annotated[int, whole(64), written(2)]
    spread: Annotated[Spread, Reader(_spread, "balanced, skewed, or a list of each expert's rows")] = "balanced"
    seed: Annotated[int, whole(2**31, 0)] = 0
    chips: Annotated[int, whole(1024)] = 1

    def __post_init__(self) -> None:
        if self.top > self.experts:
            raise InputError(Problem(f"a row cannot take {self.top} of {self.experts} experts; write fewer", "top"))
        if isinstance(self.spread, tuple):
            total, wanted = sum(self.spread), self.rows * self.top
            if len(self.spread) != self.experts or total != wanted or max(self.spread) > self.rows:
                says = f"{len(self.spread)} numbers that add up to {total:,}"
                also = f"{self.experts} experts have {wanted:,} rows together, and none over {self.rows:,}"
                raise InputError(Problem(f"{says}, where {also}", "spread"))

    @property
    def taken(self) -> tuple[int, ...]:
        """The rows of each expert of the chip."""
        each = self.experts // self.chips
        return max((self._of_all[start : start + each] for start in range(0, self.experts, each)), key=sum)

    @property
    def _of_all(self) -> tuple[int, ...]:
        """The rows of every expert, of all chips."""
        if isinstance(self.spread, tuple):
            return tuple(rows * self.chips for rows in self.spread)
        if self.spread == "balanced":
            less, more = divmod(self.rows * self.chips * self.top, self.experts)
            return tuple(less + (number < more) for number in range(self.experts))
        # The largest of odds times lots of an exponential distribution are draws without replacement.
        lots = np.random.default_rng(self.seed).exponential(size=(self.rows * self.chips, self.experts))
        chosen = np.argsort(lots * np.arange(1, self.experts + 1), axis=1)[:, : self.top]
        return tuple(np.bincount(chosen.ravel(), minlength=self.experts).tolist())

    def operands(self, batch: int) -> tuple[int, ...]:
        return self.rows * self.channels, self.rows * self.experts

    def outcome(self, batch: int) -> Shape:
        return self.channels, 1, 1, self.rows

    def parts(self, read: Sequence[Source], batch: int) -> Iterator[CompositeLayer]:
        # Rows are gathered and put back as they are read, so that nothing is copied for it.
        rows, weights = (each._replace(direct=False) for each in read)
        downs: list[Source] = []
        for number, taken in enumerate(self.taken, 1):
            if not taken:
                continue
            gate, up = (
                Gemm(f"{self.name}.{each}_{number}", taken, self.inner, self.channels) for each in ("gate", "up")
            )
            act = Swiglu(f"{self.name}.act_{number}", self.inner, images=taken)
            down = Gemm(f"{self.name}.down_{number}", taken, self.channels, self.inner)
            yield from (CompositeLayer(gate, (rows,)), CompositeLayer(up, (rows,)))
            yield CompositeLayer(act, (Source((gate.name,)), Source((up.name,))))
            yield CompositeLayer(down, (Source((act.name,)),))
            downs.append(_of(down))
        of_all = self.rows * self.top
        weigh = Mul(f"{self.name}.weigh", self.channels, images=of_all, other="pixel")
        yield CompositeLayer(weigh, (side_by_side(downs, direct=False), weights), ends=self.top == 1)
        made = _of(weigh)
        for number in range(2, self.top + 1):
            end = "" if self.top == 2 else f"_{number - 1}"
            added = Add(f"{self.name}.sum{end}", self.channels, images=self.rows)
            yield CompositeLayer(added, (made, _of(weigh)), ends=number == self.top)
            made = Source((added.name,))
