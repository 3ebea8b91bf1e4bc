"""Attention and turned positions, of the domain com.microsoft, as the products and other operators that they are.

Source: the operators' texts of ONNX Runtime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.formats.onnx_model.new_nodes import Expansion, NewNodes, SeveralOps


def _count(given: SeveralOps, name: str) -> int:
    """Return how many heads there are by an attribute. Raises UnfitNode for none."""
    if (heads := given.get(name, 1)) < 1:
        raise UnfitNode(f"{name} is {heads:,}; there must be a head")
    return heads


def _heads(new: NewNodes, rows: str, heads: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
    """Add the parts of rows that belong to heads: [image, head, token, channel]."""
    return new.add("Transpose", [new.shaped(rows, [0, 0, heads, -1])], perm=[*order])


class _PastTokens(NamedTuple):
    """Keys and values, [image, head, token, channel], of tokens ahead of those that attend; names are empty where there
    are none, or where those of all tokens are not wanted.
    """

    keys: str = ""
    values: str = ""
    all_keys: str = ""
    all_values: str = ""

    def with_keys(self, new: NewNodes, keys: str) -> str:
        """Add the keys of all tokens."""
        return _behind(new, self.keys, keys, self.all_keys)

    def with_values(self, new: NewNodes, values: str) -> str:
        """Add the values of all tokens."""
        return _behind(new, self.values, values, self.all_values)

    def __bool__(self) -> bool:
        return any(self)


def _behind(new: NewNodes, past: str, made: str, wanted: str) -> str:
    if past:
        return new.add("Concat", [past, made], wanted, axis=2)
    return new.add("Identity", [made], wanted) if wanted else made


def _attended(
    given: SeveralOps,
    new: NewNodes,
    factors: Sequence[str],
    sizes: tuple[int, int],
    masks: Sequence[str],
    past: _PastTokens,
) -> None:
    """Add the nodes of attention of queries, keys and values, [image, token, channel]; `sizes` are how many heads there
    are, and of how many channels.
    """
    (queries, keys, values), (heads, channels) = factors, sizes
    if past:
        every = past.with_keys(new, _heads(new, keys, heads))
        turned = new.add("Transpose", [every], perm=[0, 1, 3, 2])
    else:
        turned = _heads(new, keys, heads, (0, 2, 3, 1))
    scores = new.add("MatMul", [_heads(new, queries, heads), turned])
    scores = new.add("Mul", [scores, new.constant(given.get("scale", 0.0) or channels**-0.5)])
    for mask in masks:
        scores = new.add("Add", [scores, mask])
    shares, of_all = new.add("Softmax", [scores], axis=-1), past.with_values(new, _heads(new, values, heads))
    made = new.add("MatMul", [shares, of_all])
    new.shaped(new.add("Transpose", [made], perm=[0, 2, 1, 3]), [0, 0, -1], given.output())


def _masks(given: SeveralOps, new: NewNodes, kept: int, tokens: int, ahead: int) -> list[str]:
    """Add what is added to scores, of `tokens` behind `ahead` of the past: to leave keys out by a mask of ones and
    zeros, [image, key], operand `kept`; to leave later keys out, where the node asks for it; and operand 5.
    """
    least, masks = given.get("mask_filter_value", -10000.0), list[str]()
    if given.name(kept):
        if len(given.shape(kept)) != 2:
            raise UnfitNode("its mask is none of a number for each key of an image")
        left_out = new.add("Sub", [new.constant(1.0), new.add("Cast", [given.name(kept)], to=TensorProto.FLOAT)])
        masks.append(new.shaped(new.add("Mul", [left_out, new.constant(least)]), [0, 1, 1, -1]))
    if given.get("unidirectional", 0):
        later = np.triu(np.full((tokens, ahead + tokens), least), 1 + ahead)
        masks.append(new.constant(later.reshape(1, 1, tokens, ahead + tokens)))
    return [*masks, *filter(None, [given.name(5)])]


def _attention(given: SeveralOps, new: NewNodes) -> None:
    given.refuse({6: "a length of the past"}, ["do_rotary", "past_present_share_buffer"])
    _, tokens, _ = given.shape(0)
    heads = _count(given, "num_heads")
    sizes = [*given.attributes.get("qkv_hidden_sizes", [given.shape(1)[1] // 3] * 3)]
    every = new.add("MatMul", given.names[:2])
    every = new.add("Add", [every, given.name(2)]) if given.name(2) else every
    ahead, past = 0, _PastTokens()
    if given.name(4):
        # Keys and values of the past are one value.
        _, *sizes_of_one = given.shape(4)
        ahead = sizes_of_one[2]
        past = _PastTokens(*(new.shaped(each, sizes_of_one) for each in new.cut(given.name(4), [1, 1], axis=0)))
    if given.output(1):
        past = past._replace(all_keys=new.named("Concat"), all_values=new.named("Concat"))
    masks = _masks(given, new, 3, tokens, ahead)
    _attended(given, new, new.cut(every, sizes), (heads, sizes[0] // heads), masks, past)
    if given.output(1):
        one = [1, given.shape(0)[0], heads, ahead + tokens, -1]
        stacked = [new.shaped(each, one) for each in (past.all_keys, past.all_values)]
        new.add("Concat", stacked, given.output(1), axis=0)


def _multi_head_attention(given: SeveralOps, new: NewNodes) -> None:
    given.refuse({8: "a length of the past", 9: "an indirection"})
    if not (given.name(1) and given.name(2)) or {len(given.shape(at)) for at in range(3)} != {3}:
        raise UnfitNode("its queries, keys and values are no three values of three axes")
    factors, (_, tokens, channels) = [*given.names[:3]], given.shape(0)
    if given.name(3):
        sizes = [given.shape(at)[2] for at in range(3)]
        biases = new.cut(given.name(3), sizes)
        factors = [new.add("Add", [name, bias]) for name, bias in zip(factors, biases, strict=True)]
    heads = _count(given, "num_heads")
    past = _PastTokens(given.name(6), given.name(7), given.output(1), given.output(2))
    ahead = given.shape(6)[2] if given.name(6) else 0
    masks = _masks(given, new, 4, tokens, ahead)
    _attended(given, new, factors, (heads, channels // heads), masks, past)


def _turned(new: NewNodes, points: str, half: int, tables: Sequence[str], output: str = "") -> str:
    """Add a turn of both halves of each head's channels, the last axis, by tables of cosines and sines."""
    cos, sin = tables
    one, other = new.cut(points, [half, half])
    first = new.add("Sub", [new.add("Mul", [one, cos]), new.add("Mul", [other, sin])])
    second = new.add("Add", [new.add("Mul", [one, sin]), new.add("Mul", [other, cos])])
    return new.add("Concat", [first, second], output, axis=-1)


def _rotated(given: SeveralOps, new: NewNodes) -> None:
    """Write out a turn by the cosines and sines of a token's position."""
    given.refuse(attributes=("interleaved", "rotary_embedding_dim", "is_packed_batching"))
    shape, half = given.shape(0), given.shape(2)[-1]
    if len(given.shape(1)) != 2:
        raise UnfitNode("its positions are none of a number for each token")
    rows = len(shape) == 3
    heads = given.get("num_heads", 0) or (shape[2] // (2 * half) if rows else shape[1])
    # Tables have one head, whichever axis heads are.
    along = [0, 0, 1, half] if rows else [0, 1, -1, half]
    points = new.shaped(given.name(0), [0, 0, heads, -1]) if rows else given.name(0)
    tables = [new.shaped(new.add("Gather", [given.name(at), given.name(1)], axis=0), along) for at in (2, 3)]
    turned = _turned(new, points, half, tables, "" if rows else given.output())
    if rows:
        new.shaped(turned, [0, 0, -1], given.output())


_GROUPED = {9: "positions of its own", 10: "a bias of scores", 11: "sinks"}
"""Operands of a GroupQueryAttention that are not known here."""


def _group_query_attention(given: SeveralOps, new: NewNodes) -> None:
    """Write out attention in which heads share keys, each query to the keys up to its own: rows of one product."""
    given.refuse(_GROUPED, ("rotary_interleaved", "smooth_softmax", "qk_output"))
    heads, shared = _count(given, "num_heads"), _count(given, "kv_num_heads")
    images, tokens, width = given.shape(0)
    channels = width // (heads if given.name(1) else heads + 2 * shared)
    sizes = [heads * channels, shared * channels, shared * channels]
    factors = [*given.names[:3]] if given.name(1) else new.cut(given.name(0), sizes)
    ahead = given.shape(3)[2] if given.name(3) else 0
    # All but the last of a sequence's keys are told; of several sequences each may have fewer than the longest.
    alike = images == 1 or not ahead or [*given.lists.get(given.name(5), ())] == [ahead + tokens - 1] * images
    several = None if alike else _Sequences.of(given, new, tokens, ahead)
    total = given.lists.get(given.name(6), [ahead + tokens])
    if [*total] != [ahead + tokens]:
        raise UnfitNode(
            f"its keys are {total[0]:,} in all, and not the {ahead:,} of the past and {tokens:,} of its own"
        )
    points = [new.shaped(each, [0, 0, -1, channels]) for each in factors]
    if given.get("do_rotary", 0):
        half = given.shape(7)[-1]
        if 2 * half != channels:
            raise UnfitNode("it turns some of a head's channels alone")
        places = several.places(new) if several else new.numbers(range(ahead, ahead + tokens))
        rows = [new.add("Gather", [given.name(at), places], axis=0) for at in (7, 8)]
        tables = [new.shaped(each, [images if several else 1, tokens, 1, half]) for each in rows]
        points = [_turned(new, points[0], half, tables), _turned(new, points[1], half, tables), points[2]]
    queries, keys, values = (new.add("Transpose", [each], perm=[0, 2, 1, 3]) for each in points)
    before = [given.name(at) if ahead else "" for at in (3, 4)]
    wanted = ("", "") if several else (given.output(1), given.output(2))
    past = _PastTokens(before[0], before[1], *wanted)
    every = past.with_keys(new, keys)
    queries = new.shaped(queries, [0, shared, -1, channels])
    scores = new.add("MatMul", [queries, new.add("Transpose", [every], perm=[0, 1, 3, 2])])
    scores = new.add("Mul", [scores, new.constant(given.get("scale", 0.0) or channels**-0.5)])
    if cap := given.get("softcap", 0.0):
        within = new.add("Tanh", [new.add("Mul", [scores, new.constant(1 / cap)])])
        scores = new.add("Mul", [within, new.constant(cap)])
    window = given.get("local_window_size", -1)
    unseen = _unseen(tokens, ahead, window)
    if several:
        left_out = new.add("Tile", [several.left_out(new, window), new.numbers([1, 1, heads // shared, 1])])
        scores = new.add("Add", [scores, left_out])
    elif unseen.any():
        rows_of = np.tile(np.where(unseen, -np.inf, 0), (heads // shared, 1))
        scores = new.add("Add", [scores, new.constant(rows_of[None, None])])
    all_values = past.with_values(new, values)
    if several:
        for at, each in enumerate((every, all_values), start=1):
            several.behind_one_another(new, each, (shared, channels), given.output(at))
    made = new.add("MatMul", [new.add("Softmax", [scores], axis=-1), all_values])
    made = new.shaped(made, [0, heads, tokens, channels])
    new.shaped(new.add("Transpose", [made], perm=[0, 2, 1, 3]), [0, 0, -1], given.output())


class _Sequences(NamedTuple):
    """Sequences whose keys of the past may be fewer than there is room for: they stand at the beginning of that.

    Attributes:
        lengths: the name of how many each has, [image, 1, 1, 1].
        images: how many sequences there are.
        tokens, ahead: how many keys each adds, and for how many of the past there is room.
    """

    lengths: str
    images: int
    tokens: int
    ahead: int

    @classmethod
    def of(cls, given: SeveralOps, new: NewNodes, tokens: int, ahead: int) -> _Sequences:
        """Add the lengths: operand 5 tells of each sequence how many keys it has in all, less one."""
        last = new.add("Cast", [given.name(5)], to=TensorProto.INT64)
        lengths = new.shaped(new.add("Sub", [last, new.numbers([tokens - 1])]), [-1, 1, 1, 1])
        return cls(lengths, given.shape(0)[0], tokens, ahead)

    def places(self, new: NewNodes) -> str:
        """Add where its own tokens stand in each sequence, [image, token]."""
        return new.add("Add", [new.shaped(self.lengths, [-1, 1]), new.numbers(range(self.tokens))])

    def left_out(self, new: NewNodes, window: int) -> str:
        """Add what leaves keys out of scores, [image, 1, query, key]: of the past, and then its own."""
        keys, own = np.arange(self.ahead)[None], np.arange(self.tokens)[:, None]
        seen = new.add("Less", [new.constant(keys[None, None], np.int64), self.lengths])
        last = new.constant((keys - own + (window if window > 0 else self.ahead + self.tokens))[None, None], np.int64)
        seen = new.add("And", [seen, new.add("Less", [self.lengths, last])])
        # Looked up, as to choose numbers would be a layer.
        choice = new.add("Cast", [seen], to=TensorProto.INT64)
        past = new.add("Gather", [new.constant([-np.inf, 0]), choice], axis=0)
        later = np.where(_unseen(self.tokens, 0, window), -np.inf, 0)
        return new.add("Concat", [past, new.constant(np.tile(later, (self.images, 1, 1, 1)))], axis=3)

    def behind_one_another(self, new: NewNodes, every: str, heads: tuple[int, int], output: str) -> None:
        """Add keys, or values, with a sequence's own right behind those of its past, and zeros at the end.

        `every` has its own behind all room for the past; `heads` are how many there are, and of how many channels.
        """
        if not output:
            return
        room = self.ahead + self.tokens
        at = new.constant(np.arange(room).reshape(1, 1, -1, 1), np.int64)
        own = new.add("Add", [new.add("Sub", [at, self.lengths]), new.numbers([self.ahead])])
        filled = new.add("Less", [at, new.add("Add", [self.lengths, new.numbers([self.tokens])])])
        source = new.add("Where", [new.add("Less", [at, self.lengths]), at, own])
        source = new.add("Where", [filled, source, new.numbers([room])])
        wide = new.add("Expand", [source, new.numbers([self.images, heads[0], room, heads[1]])])
        zeros = new.constant(np.zeros((self.images, heads[0], 1, heads[1])))
        new.add("GatherElements", [new.add("Concat", [every, zeros], axis=2), wide], output, axis=2)


def _unseen(tokens: int, ahead: int, window: int) -> NDArray[np.bool_]:
    """Return which keys, `ahead` of them of the past, queries do not see: later ones, and all but the last of a window
    of that many; below 1 there is none.
    """
    own, keys = np.arange(ahead, ahead + tokens)[:, None], np.arange(ahead + tokens)
    return np.asarray((keys > own) | ((window > 0) & (keys <= own - window)))


ATTENTION: Mapping[str, Expansion] = {
    "Attention": _attention, "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention, "RotaryEmbedding": _rotated,
}  # fmt: skip
"""By operator how it is written out."""
