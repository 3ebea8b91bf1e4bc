"""Attention whose scores are never stored: one op, in place of two products and a softmax; and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tpusim.base.errors import InputError, Problem
from tpusim.base.words import counted
from tpusim.input.form import Name, Truth, validated, written
from tpusim.network.ops.op import OFMAP, Channels, Images, Index, Op, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEYS, VALUES, NUMBERS, LAST, ONE = "keys", "values", "key_numbers", "last_key", "one"
"""The tensors other than the queries, which are the ifmap: keys, values, the number of each key, that of the last
key that a query sees, and a one, of which products make sums.
"""
QUERIES = "queries"
"""The queries beside a gradient, which is the ifmap there."""


def unfit_heads(heads: int, kv_heads: int, queries: int, keys: int) -> list[Problem]:
    """Return the problems that the heads and tokens of an attention have together."""
    problems: list[Problem] = []
    if kv_heads and heads % kv_heads:
        says = f"{heads} heads cannot share {kv_heads} evenly"
        problems.append(Problem(f"{says}; write a divisor of heads", "kv_heads"))
    if keys and keys < queries:
        says = f"{counted(keys, 'key')} cannot hold those of the {queries:,} queries"
        problems.append(Problem(f"{says}; write {queries} at least", "keys"))
    return problems


@validated
class FlashAttention(Op):
    """The attention of `heads`, which makes and uses scores block by block (Dao et al. 2022, arXiv:2205.14135).

    Each block of keys has products of queries and keys; e to the power of each score less the largest score so far; the
    sum of these powers; and their products with values. Sum and products are scaled anew when a larger score comes. The
    weights that make the queries contain the scale of the scores.

    Where keys are masked, the vector unit compares a number for each key with the last key that the query sees. These
    numbers are read from HBM; code for TPUs makes them on chip.

    Attributes:
        name: name of the layer, which no other layer of the network has.
        heads: heads of the queries.
        head: elements of a head.
        queries: tokens of each sequence that ask.
        kv_heads: heads of keys and values; 0: as many as of the queries.
        keys: keys of each sequence; the last of them are those of the queries; 0: as many as queries.
        images: sequences; 0: as many as images of the batch.
        causal: whether a query sees no keys behind its own.

    Examples:
        >>> from tpusim.network.ops.flash_attention import FlashAttention
        >>> layer = FlashAttention("attention", heads=8, head=256, queries=512)
        >>> layer.text, layer.macs(batch=1)
        ('512x512 8x256 causal', 537919488)
    """

    op: ClassVar[str] = "flash_attention"
    unit: ClassVar[Literal["array", "vector"]] = "array"
    counted_by: ClassVar[Literal["image", "row"]] = "image"
    spatial: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    grammar: ClassVar[str] = "queries x keys, heads x elements of each, kv heads where these are fewer"
    sized_by: ClassVar[Mapping[str, int]] = {}

    name: Annotated[str, Name(), written("attention")]
    heads: Annotated[Channels, written(32)]
    head: Annotated[Channels, written(128)]
    queries: Annotated[Channels, written("tokens")]
    kv_heads: Annotated[Images, written(8)] = 0
    keys: Annotated[Images, written("context")] = 0
    images: Annotated[Images, written("batch")] = 0
    causal: Annotated[bool, Truth()] = True

    def __post_init__(self) -> None:
        if problems := unfit_heads(self.heads, self.kv_heads, self.queries, self.keys):
            raise InputError(problems)

    @property
    def of_keys(self) -> int:
        """The number of keys of each sequence."""
        return self.keys or self.queries

    @property
    def of_kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def text(self) -> str:
        """The shape in short: "512x512 8x256 kv2 causal": queries x keys, heads x elements of each, heads of keys."""
        shared = f" kv{self.kv_heads}" if self.of_kv_heads < self.heads else ""
        return f"{self.queries}x{self.of_keys} {self.heads}x{self.head}{shared}" + " causal" * self.causal

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: tokens of all sequences are images, one sequence after another."""
        images, channels = self.images or batch, self.of_kv_heads * self.head
        asking = self.heads * self.head, 1, 1, self.queries * images
        asked = channels, 1, 1, self.of_keys * images
        numbers = {NUMBERS: (self.of_keys, 1, 1, 1), LAST: (1, 1, 1, self.queries), ONE: (1, 1, 1, 1)}
        return {"ifmap": asking, KEYS: asked, VALUES: asked, **numbers, OFMAP: asking}

    @property
    def fixed(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        def one(_: int) -> NDArray[np.float32]:
            import numpy as np

            return np.ones((1, 1, 1, 1), np.float32)

        return {**self.numbers_of_keys, ONE: one}

    @property
    def numbers_of_keys(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        """The numbers of keys, below zero, so that what lies behind the last one, zero, is seen by no query; and the
        last that each query sees.
        """

        def numbers(_: int) -> NDArray[np.float32]:
            import numpy as np

            return np.arange(-self.of_keys, 0, dtype=np.float32).reshape(-1, 1, 1, 1)

        def last(_: int) -> NDArray[np.float32]:
            import numpy as np

            seen = np.arange(-self.queries, 0) if self.causal else np.full(self.queries, -1)
            return seen.astype(np.float32).reshape(1, 1, 1, -1)

        return {NUMBERS: numbers, LAST: last}

    def batch_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        return shapes["ifmap"][-1] // self.queries

    def terms(self, batch: int) -> int:
        """Return how many products a score or an output sums up, whichever are more."""
        return max(self.head, self.of_keys)

    def macs(self, batch: int) -> int:
        """Count two products for each score that a query sees."""
        seen = self.queries * self.of_keys - self.causal * self.queries * (self.queries - 1) // 2
        return 2 * seen * self.head * self.heads * (self.images or batch)

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        channel, _, _, image = index
        return ("sequence", "query", "head", "element"), (
            *divmod(image, self.queries), *divmod(channel, self.head)
        )  # fmt: skip

    @property
    def _own_count(self) -> tuple[str, int]:
        return "images", self.images


@validated
class FlashAttentionGradient(FlashAttention):
    """The gradients of a flash attention by its queries, keys and values, of that by its outputs (Dao et al. 2022).

    Scores are made once more, block by block of the queries, and are never stored. Of each block come the shares of the
    keys, the gradients of these shares, and with these those of the scores; then five products are done in all: scores,
    gradients of shares, and what a block adds to the gradients by values, keys and queries. Softmax and its gradient
    take all keys that a query sees at once, so that nothing of the attention itself is needed.

    The gradient by the outputs is the ifmap. The result has, side by side along the channels, the gradients by the
    queries' heads, the keys', and the values'. So there are as many keys as queries, which is so where all tokens of a
    sequence are trained on.

    Examples:
        >>> from tpusim.network.ops.flash_attention import FlashAttentionGradient
        >>> layer = FlashAttentionGradient("attention.dx", heads=8, head=256, queries=512, kv_heads=2)
        >>> layer.shapes(batch=1)["ofmap"], layer.macs(batch=1)
        ((3072, 1, 1, 512), 1344798720)
    """

    op: ClassVar[str] = "flash_attention_gradient"

    keys: Annotated[Images, written("tokens")] = 0

    def __post_init__(self) -> None:
        # By name, because a validated class is made anew, and super() would mean the one that it was made of.
        FlashAttention.__post_init__(self)
        if self.of_keys != self.queries:
            says = f"gradients are known where each token is a query and a key, and {self.of_keys:,} keys are not "
            raise InputError(Problem(f"{says}{self.queries:,} queries; leave keys out", "keys"))

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return shapes: tokens of all sequences are images, one sequence after another."""
        every = FlashAttention.shapes(self, batch)
        asking, keys = every["ifmap"], every[KEYS]
        own = {name: every[name] for name in (NUMBERS, LAST)}
        made = asking[0] + 2 * keys[0], *asking[1:]
        return {"ifmap": asking, QUERIES: asking, KEYS: keys, VALUES: keys, **own, OFMAP: made}

    @property
    def fixed(self) -> Mapping[str, Callable[[int], NDArray[np.float32]]]:
        return self.numbers_of_keys

    def terms(self, batch: int) -> int:
        """Return how many products an element of the keys' gradients sums up, or one of the scores."""
        return max(self.head, self.queries * (self.heads // self.of_kv_heads))

    def macs(self, batch: int) -> int:
        """Count five products for each score that a query sees."""
        return FlashAttention.macs(self, batch) // 2 * 5
