"""The entries of a decoder: those of each kind of block, in blocks that come several times, and its parameters.

The files of the language models that come with tpusim have the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tpusim.network.entries import Entry
from tpusim.network.workload import INPUT

# ---- what a decoder is


class BlockKind(NamedTuple):
    """What differs between the blocks of a decoder: the keys that a query sees at most (0: all), and whether experts
    are its feed-forward part.
    """

    window: int = 0
    experts: bool = False


PLAIN = BlockKind()


class ExpertSizes(NamedTuple):
    """A mixture of experts.

    Attributes:
        experts: experts of a block.
        top: experts that a token takes.
        inner: elements of a row inside an expert; `shared` those of the expert that all tokens take, 0: none.
        odds: op that makes odds of the router's scores.
        corrected: whether a number of each expert is added to the odds.
        renormalize: whether the odds of the experts taken are divided by their sum.
        weighed: whether a share of each token, between 0 and 1, scales what the shared expert makes of it.
    """

    experts: int
    top: int
    inner: int
    shared: int = 0
    odds: str = "softmax"
    corrected: bool = False
    renormalize: bool = True
    weighed: bool = False


class LatentSizes(NamedTuple):
    """Latent attention: keys and values of all heads are products with one `latent` vector of a token.

    Attributes:
        latent: elements of that vector, which is what the cache keeps, beside `turned` elements of a key.
        queries: elements of a token that its queries are made of; 0: queries are made of the token itself.
        plain: elements of a head that do not turn.
        turned: elements of a head that turn by the position; those of the key are shared by all heads.
        value: elements of a head of the values.
    """

    latent: int
    queries: int
    plain: int
    turned: int
    value: int


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder as its config describes it.

    Attributes:
        width: elements of a token between blocks.
        heads: heads of queries; kv_heads: of keys and values; 0: as many, of one product with the queries.
        head: elements of a head; None: the width over the heads.
        inner: elements of a row in the feed-forward part.
        vocabulary: tokens that there are.
        context: tokens of a prompt, unless a run says otherwise.
        blocks: kinds of the blocks, in order.
        act: op of the feed-forward part; `swiglu` and `geglu` have a gate.
        epsilon: number that norms add.
        norm: op of the norms.
        base: base of the wavelengths by which queries and keys turn; 0: they do not. `near_base` is that of blocks with
            a window.
        turned: elements of a head that turn; 0: all.
        positions: rows of a table that is added to the embeddings; 0: none.
        biases: names of products that have biases.
        approximate: whether gelu is worked out by tanh.
        head_norms: whether the heads of queries and keys have norms.
        norms_behind: whether attention and feed-forward part have norms behind them, too.
        parallel: whether the feed-forward part reads what the attention reads.
        own_norm: whether it then has a norm of its own.
        joined: whether queries, keys and values are one product, and gate and up another.
        score_cap, logit_cap: bounds of scores and logits; 0: none.
        tied: whether the last product's weights are the embeddings.
        experts: sizes of experts, where blocks have any.
        latent: sizes of latent attention, if it is one.
    """

    width: int
    heads: int
    inner: int
    vocabulary: int
    context: int
    blocks: tuple[BlockKind, ...]
    act: str
    epsilon: float
    kv_heads: int = 0
    head: int | None = None
    norm: str = "rms_norm"
    base: float = 0.0
    near_base: float = 0.0
    turned: int = 0
    positions: int = 0
    biases: frozenset[str] = frozenset()
    approximate: bool = False
    head_norms: bool = False
    norms_behind: bool = False
    parallel: bool = False
    own_norm: bool = False
    joined: bool = False
    score_cap: float = 0.0
    logit_cap: float = 0.0
    tied: bool = False
    experts: ExpertSizes | None = None
    latent: LatentSizes | None = None

    @property
    def trains(self) -> bool:
        """Whether a training step of it is simulated."""
        plain = not (self.latent or self.experts or self.score_cap or self.logit_cap or self.turned)
        return plain and self.act != "geglu" and not any(kind.window for kind in self.blocks)


# ---- its entries

CONTEXT = "context"
"""The size that each token of a generation adds one to."""
_ROWS, _EPSILON, _BASE = "batch*tokens", {"rms_norm": 1e-6, "layer_norm": 1e-5}, 10000.0


def entries_of(decoder: DecoderConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the part of a file that is the decoder's: its sizes and phases, what grows, and its entries in blocks; and
    sums of sizes that together make the number of its weights.
    """
    trains = decoder.trains
    phases: dict[str, dict[str, int | str]] = {"prefill": {"tokens": CONTEXT}, "decode": {"tokens": 1}}
    if trains:
        phases["training"] = {"predicted": "tokens", "blocks": 1}
    ahead, behind = _Writer(decoder, ""), _Writer(decoder, "")
    ahead.add("embedding", "embedding", channels="width", images="vocabulary", rows=_ROWS)
    ahead.parameters.append("vocabulary*width")
    if decoder.positions:
        ahead.add("positions", "add")
        ahead.parameters.append(f"{decoder.positions}*width")
    layers, parameters = ahead.entries, ahead.parameters
    blocks = [*_blocks(decoder)]
    for number, (times, _, kinds) in enumerate(blocks, 1):
        name = "blocks" if number == 1 else f"blocks_{number}"
        layers.append({"block": name, "count": times, "layers": [entry for each in kinds for entry in each.entries]})
        parameters += [f"({times})*({each})" for one in kinds for each in one.parameters]
    behind.add("last_token", "view", channels="width", **({"images": "batch*predicted"} if trains else {}))
    behind.normed("last_norm")
    # GPT-2's own words for its last product.
    behind.product("next_token" if decoder.positions else "logits", "vocabulary", "" if decoder.tied else "width")
    if decoder.logit_cap:
        behind.add("capped", "soft_cap", cap=_plain(decoder.logit_cap))
    sizes = _sizes(decoder, {name: each for _, counts, _ in blocks for name, each in counts.items()})
    data = {"sizes": sizes, "phases": phases, "grows": CONTEXT, "layers": layers + behind.entries}
    return data, parameters + behind.parameters


def _sizes(decoder: DecoderConfig, counts: Mapping[str, int]) -> dict[str, int | str]:
    sizes: dict[str, int | str] = {CONTEXT: decoder.context, "tokens": CONTEXT}
    if decoder.trains:
        sizes |= {"predicted": 1, "blocks": 16}
    sizes |= {**counts, "width": decoder.width, "heads": decoder.heads}
    if latent := decoder.latent:
        sizes |= {"latent": latent.latent, **({"query_latent": latent.queries} if latent.queries else {})}
        sizes |= {"plain": latent.plain, "turned": latent.turned, "value_head": latent.value}
    else:
        sizes |= {"kv_heads": decoder.kv_heads} if decoder.kv_heads else {}
        sizes["head"] = "width//heads" if decoder.head is None else decoder.head
        sizes |= {"turned": decoder.turned} if decoder.turned else {}
    if window := max(kind.window for kind in decoder.blocks):
        sizes["window"] = window
    if any(not kind.experts for kind in decoder.blocks):
        sizes["inner"] = decoder.inner
    if (experts := decoder.experts) and any(kind.experts for kind in decoder.blocks):
        sizes |= {"experts": experts.experts, "top": experts.top, "expert_inner": experts.inner}
        sizes |= {"shared_inner": experts.shared} if experts.shared else {}
    return {**sizes, "vocabulary": decoder.vocabulary}


def _rows(kinds: Sequence[BlockKind]) -> Iterator[tuple[Sequence[BlockKind], int]]:
    """Yield kinds in rows, and how often each comes: each the one that covers most, and of these the shortest."""
    at = 0
    while at < len(kinds):
        best, many = kinds[at : at + 1], 1
        for period in range(1, (len(kinds) - at) // 2 + 1):
            row, times = kinds[at : at + period], 1
            while kinds[at + times * period : at + (times + 1) * period] == row:
                times += 1
            if (times > 1 or period == 1) and period * times > len(best) * many:
                best, many = row, times
        yield best, many
        at += len(best) * many


_ROWS_OF = {1: "layers", 2: "pairs"}
"""By the number of kinds in a row, the name of the size for how often it comes, where there is no other row."""


def _blocks(decoder: DecoderConfig) -> Iterator[tuple[int | str, dict[str, int], list[_Writer]]]:
    """Yield the blocks of the file: how often each comes, the size that says it, if any, and the entries of each kind.

    Names of entries begin with what their kinds differ in.
    """
    rows = [*_rows(decoder.blocks)]
    every = [kind for row, _ in rows for kind in row]
    windows, mixtures = ({kind[at] for kind in every} for at in range(2))

    def word(kind: BlockKind) -> str:
        near = ("near" if kind.window else "far") if len(windows) > 1 else ""
        mixed = ("mixed" if kind.experts else "dense") if len(mixtures) > 1 else ""
        return "_".join(filter(None, (near, mixed)))

    words = [word(kind) for kind in every]
    seen: dict[str, int] = {}
    for row, times in rows:
        written: list[_Writer] = []
        for kind in row:
            base = word(kind)
            number = seen[base] = seen.get(base, 0) + 1
            # Without a word all blocks are alike, and there is one kind.
            prefix = f"{base}_{number}_" if words.count(base) > 1 else f"{base}_" if base else ""
            written.append(_Writer(decoder, prefix, kind, written[-1].last if written else INPUT))
            written[-1].block()
        if len(rows) == 1:
            name = _ROWS_OF.get(len(row), "rows")
            yield name, {name: times}, written
        elif len({*words}) == len(words):
            name = f"{written[0].prefix}layers"
            yield name, {name: times}, written
        else:
            yield times, {}, written


def _plain(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


@dataclass
class _Writer:
    """Entries that are written one behind another, and texts whose sums are their parameters."""

    decoder: DecoderConfig
    prefix: str
    kind: BlockKind = PLAIN
    reads: str = ""
    entries: list[Entry] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)

    @property
    def last(self) -> str:
        """The name of the last entry; ahead of the first, of what the first one reads."""
        return self.entries[-1]["name"] if self.entries else self.reads

    def add(self, name: str, op: str, *inputs: str, **sizes: Any) -> str:
        """Write an entry, which reads the last one unless it says otherwise, and return its name."""
        called = f"{self.prefix}{name}"
        read = {"inputs": [*inputs]} if inputs and inputs != (self.last,) else {}
        self.entries.append({"name": called, "op": op, **read, **sizes})
        return called

    def product(self, name: str, n: str | int, rows: str, *inputs: str, **sizes: Any) -> str:
        """Write a product whose weights have n columns, and rows of all groups together; "": they count elsewhere."""
        self.parameters += [f"({n})*({rows})"] if rows else []
        biased = name in self.decoder.biases
        self.parameters += [str(n)] if biased else []
        return self.add(name, "gemm", *inputs, n=n, **sizes, **({"biases": True} if biased else {}))

    def normed(self, name: str, *inputs: str, channels: str = "width") -> str:
        norm, epsilon = self.decoder.norm, self.decoder.epsilon
        self.parameters.append(channels if norm == "rms_norm" else f"2*({channels})")
        return self.add(name, norm, *inputs, **({"epsilon": epsilon} if epsilon != _EPSILON[norm] else {}))

    # ---- a block

    def block(self) -> None:
        """Write the entries of a block."""
        of, begins = self.decoder, self.reads
        normed = self.normed("attention_norm")
        (self._latent_attention if of.latent else self._attention)(normed)
        attended = self.product("projection", "width", "heads*value_head" if of.latent else "heads*head")
        if of.norms_behind:
            attended = self.normed("attention_behind_norm")
        total = self.add("attention_sum", "add", attended, begins)
        if of.parallel:
            read = self.normed("feed_forward_norm", begins) if of.own_norm else normed
        else:
            read = self.normed("feed_forward_norm")
        made = self._experts(read) if self.kind.experts else self._feed_forward(read)
        if of.norms_behind:
            made = self.normed("feed_forward_behind_norm")
        self.add("feed_forward_sum", "add", made, total)

    def _attention(self, normed: str) -> None:
        of = self.decoder
        keys, shared = ("kv_heads", {"kv_heads": "kv_heads"}) if of.kv_heads else ("heads", {})
        if of.joined:
            together = f"(heads + 2*{keys})*head" if of.kv_heads else "3*heads*head"
            query = key = value = self.product("query_key_value", together, "width", normed)
        else:
            query = self.product("query", "heads*head", "width", normed)
            key, value = (self.product(each, f"{keys}*head", "width", normed) for each in ("key", "value"))
        if of.base:
            query, key = self._turned("query", query, "heads"), self._turned("key", key, keys)
            value = self._part("value", value, f"{keys}*head") if of.joined else value
            stored = [
                self.add(name, "cache", made, channels=f"{keys}*head", tokens=CONTEXT)
                for name, made in (("keys", key), ("values", value))
            ]
        else:
            # One product makes both as they are kept, so they are one cache, of which each reader reads its half.
            query = self._part("query", query, "heads*head")
            self._part("key_value", key, f"2*{keys}*head")
            past = self.add("past", "cache", channels=f"2*{keys}*head", tokens=CONTEXT)
            stored = [
                self.add(name, "view", past, channels=f"{keys}*head", width=CONTEXT) for name in ("keys", "values")
            ]
        self._heads(query, *stored, **shared, head="head")

    def _heads(self, query: str, keys: str, values: str, **sizes: str | int) -> None:
        of, more = self.decoder, dict[str, Any]()
        more |= {"window": "window"} if self.kind.window else {}
        more |= {"soft_cap": _plain(of.score_cap)} if of.score_cap else {}
        more |= {"blocks": "blocks"} if of.trains else {}
        more = {"heads": "heads", **sizes, "queries": "tokens", "keys": CONTEXT, **more}
        self.add("attention", "attention", query, keys, values, **more)

    def _part(self, name: str, of: str, channels: str) -> str:
        """Write a part of the columns of a product, as rows of tokens."""
        return self.add(name, "view", of, channels=channels, images=_ROWS)

    def _split(self, name: str, of: str, channels: str, heads: str) -> str:
        """Write heads as maps whose columns are tokens."""
        images = {"images": f"{heads}*batch"} if heads else {}
        return self.add(name, "view", of, channels=channels, width="tokens", **images)

    def _rotary(self, name: str, *inputs: str) -> str:
        base = self.decoder.near_base if self.kind.window and self.decoder.near_base else self.decoder.base
        told = {"base": _plain(base)} if base != _BASE else {}
        return self.add(name, "rotary", *inputs, **told, start=f"{CONTEXT}-tokens")

    def _turned(self, what: str, made: str, heads: str) -> str:
        """Write the heads of queries or keys, with their norms, turned as far as they turn; return their name."""
        of = self.decoder
        if of.head_norms:
            self.add(f"{what}_rows", "view", made, channels="head", images=f"{heads}*{_ROWS}")
            made = self.normed(f"{what}_norm", channels="head")
        self._split(f"{what}_heads", made, "turned" if of.turned else "head", heads)
        turned = self._rotary(f"{what}_turned")
        if not of.turned:
            return turned
        rest = self._split(f"{what}_rest", made, "head - turned", heads)
        return self.add(f"{what}_whole", "concat", turned, rest)

    def _latent_attention(self, normed: str) -> None:
        """Write the attention whose cache keeps latent vectors.

        The products that would make keys and values of each latent vector are taken to the queries, and to the results.
        """
        latent = self.decoder.latent
        query, k = normed, "width"
        if latent and latent.queries:
            self.product("query_down", "query_latent", "width", normed)
            query, k = self.normed("query_norm", channels="query_latent"), "query_latent"
        query = self.product("query", "heads*(plain + turned)", k, query)
        down = self.product("latent_down", "latent + turned", "width", normed)
        self._part("latent", down, "latent")
        self.normed("latent_norm", channels="latent")
        kept = self._split("latent_columns", self.last, "latent", "")
        self._split("key_heads", down, "turned", "")
        key = self._rotary("key_turned")
        self.add("latent_key", "concat", kept, key)
        keys = self.add("keys", "cache", channels="latent + turned", tokens=CONTEXT)
        values = self.add("values", "view", channels="latent", width=CONTEXT)
        self._split("query_heads", query, "turned", "heads")
        turned = self._rotary("query_turned")
        self._part("query_plain", query, "heads*plain")
        grouped = {"m": _ROWS, "groups": "heads"}
        self.product("query_up", "latent", "heads*plain", **grouped, k="plain")
        plain = self._split("query_columns", self.last, "latent", "heads")
        query = self.add("queries", "concat", plain, turned)
        self._heads(query, keys, values, kv_heads=1, head="latent + turned", value_head="latent")
        self.product("value_up", "value_head", "heads*latent", **grouped, k="latent")

    def _feed_forward(self, read: str) -> str:
        of = self.decoder
        if of.act in GATED:
            return self._gated("", "inner", read)
        self.product("feed_forward_up", "inner", "width", read)
        self.add(of.act, of.act, **({"approximate": "tanh"} if of.approximate else {}))
        return self.product("feed_forward_down", "width", "inner")

    def _gated(self, begins: str, inner: str, read: str) -> str:
        of = self.decoder
        if of.joined:
            both = self.product(f"{begins}gate_up", f"2*{inner}", "width", read)
            gate, up = (self._part(f"{begins}{each}", both, inner) for each in ("gate", "up"))
        else:
            gate, up = (self.product(f"{begins}{each}", inner, "width", read) for each in ("gate", "up"))
        self.add(f"{begins}act", of.act, gate, up)
        return self.product(f"{begins}down", "width", inner)

    def _experts(self, read: str) -> str:
        sizes = self.decoder.experts
        assert sizes is not None
        self.product("router", "experts", "width", read)
        self.add("odds", sizes.odds)
        if sizes.corrected:
            self.add("odds_corrected", "add", other="channel")
            self.parameters.append("experts")
        chosen = self.add("chosen", "top_k", k="top", **({} if sizes.renormalize else {"renormalize": False}))
        self.parameters.append("3*experts*width*expert_inner")
        made = self.add(
            "experts", "experts", read, chosen, rows=_ROWS, channels="width", inner="expert_inner", experts="experts",
            top="top",
        )  # fmt: skip
        if not sizes.shared:
            return made
        shared = self._gated("shared_", "shared_inner", read)
        if sizes.weighed:
            self.product("shared_weight", 1, "width", read)
            shared = self.add("shared_weighed", "mul", shared, self.add("shared_share", "sigmoid"), other="pixel")
        return self.add("experts_sum", "add", shared, made)


GATED = "swiglu", "geglu"
"""Ops of feed-forward parts that read a gate and what it lets through."""
