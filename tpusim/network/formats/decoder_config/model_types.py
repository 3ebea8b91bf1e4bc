"""The model types of Hugging Face that are known: which keys each has, and the decoder that they describe.

Keys, and what holds where one is missing, are those of the model types' configuration classes in the library
transformers. A model type is a function and a line in MODEL_TYPES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpusim.network.formats.decoder_config.entries import PLAIN, BlockKind, DecoderConfig, ExpertSizes, LatentSizes
from tpusim.network.formats.decoder_config.keys import Keys

MOST_BLOCKS = 1000
"""Most blocks of a decoder: more is a slip."""
_USUAL_CONTEXT = 4096
"""Tokens of a prompt, unless a model takes fewer, or a run says otherwise."""
_USUAL_WINDOW = 4096
"""The window of Mistral and Qwen2 where the file names none."""
_MOST_EXPERTS, _MOST_TAKEN = 1024, 8

_GATED = {
    "silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "gelu_fast": "geglu",
    "gelu": "geglu",
}  # fmt: skip
_PLAIN = {
    "gelu": ("gelu", False), "gelu_new": ("gelu", True), "gelu_pytorch_tanh": ("gelu", True),
    "gelu_fast": ("gelu", True), "relu": ("relu", False), "silu": ("silu", False), "swish": ("silu", False),
}  # fmt: skip
_FULL, _SLIDING = "full_attention", "sliding_attention"
_QKV = frozenset(("query", "key", "value"))
_GATED_PRODUCTS = frozenset(("gate", "up", "down"))
_ANGLES = "turns queries and keys by other angles, which takes no other time; the usual angles are computed here"


# ---- what many model types have


def _shape(
    keys: Keys, kv_heads: bool = True, parted: bool = True, usual: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the sizes that all but the oldest model types have.

    `kv_heads`: the file has to say the heads of keys; `parted`: without a `head_dim` heads are parts of the width.
    """
    usual = usual or {}
    heads = keys.whole("num_attention_heads", usual.get("num_attention_heads"))
    least = usual.get("num_key_value_heads", None if kv_heads else heads)
    keys.tells("rope_scaling", _ANGLES)
    width, shared = keys.whole("hidden_size", usual.get("hidden_size")), keys.whole("num_key_value_heads", least)
    keys.multiple("num_attention_heads", heads, "num_key_value_heads", shared)
    if parted and keys.data.get("head_dim") is None:
        keys.multiple("hidden_size", width, "num_attention_heads", heads)
    return {
        "width": width,
        "heads": heads,
        "kv_heads": shared,
        "inner": keys.whole("intermediate_size", usual.get("intermediate_size")),
        "vocabulary": keys.whole("vocab_size", usual.get("vocab_size")),
        "context": min(_USUAL_CONTEXT, keys.whole("max_position_embeddings", _USUAL_CONTEXT)),
    }


def _layers(keys: Keys, usual: int | None = None) -> int:
    return keys.whole("num_hidden_layers", usual, most=MOST_BLOCKS)


def _base(keys: Keys, usual: float) -> float:
    """Return the base of the wavelengths, which newer files have among the parameters of the rope."""
    told = keys.inside("rope_parameters")
    if "rope_theta" in told:
        keys.notes += [f"rope_parameters {_ANGLES}"] * (told.get("rope_type", "default") != "default")
        inside = Keys(keys.document, told, f"{keys.path}.rope_parameters".lstrip("."), keys.problems)
        return inside.real("rope_theta", usual)
    return keys.real("rope_theta", usual)


def _attention_biases(keys: Keys) -> frozenset[str]:
    """Return the products of an attention that have biases, where the file says so."""
    return _QKV | {"projection"} if keys.truth("attention_bias", False) else frozenset()


def _gated(keys: Keys, key: str = "hidden_act", usual: str = "silu") -> str:
    if keys.data.get(key) == "gelu":
        keys.notes.append(f"{key}: gelu of a gate is worked out by tanh here")
    return keys.word(key, _GATED, usual)


def _windows(keys: Keys, many: int, usual: Sequence[bool], window: int | None) -> tuple[BlockKind, ...]:
    """Return a kind for each block, from the key for it or from the usual row of windows."""
    words = keys.words("layer_types", (_FULL, _SLIDING), many)
    has = [word == _SLIDING for word in words] if words else [*usual]
    if any(has) and window is None and words:
        keys.wrong("sliding_window", "required key is missing; add it, as some layer_types are sliding_attention")
    return tuple(BlockKind(window or 0 if each else 0) for each in has)


def _window(keys: Keys, usual: int | None) -> int | None:
    """Return the window of the file: the usual one where the key is missing, none where it is null."""
    return keys.maybe("sliding_window") if usual is None or "sliding_window" in keys.data else usual


def _same_window(keys: Keys, usual: int | None = None) -> tuple[BlockKind, ...]:
    """Return kinds of blocks that all have the window of the file, or none."""
    many, window = _layers(keys), _window(keys, usual)
    return _windows(keys, many, [True] * many, window)


# ---- the model types


def _llama(keys: Keys) -> DecoderConfig:
    biases = _attention_biases(keys) | (_GATED_PRODUCTS if keys.truth("mlp_bias", False) else frozenset())
    return DecoderConfig(
        **_shape(keys, kv_heads=False),
        head=keys.maybe("head_dim"),
        blocks=(PLAIN,) * _layers(keys),
        act=_gated(keys),
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 10000.0),
        biases=biases,
        tied=keys.truth("tie_word_embeddings", False),
    )


def _mistral(keys: Keys, experts: ExpertSizes | None = None, epsilon: float = 1e-6, base: float = 1e4) -> DecoderConfig:
    kinds = _same_window(keys, None if experts else _USUAL_WINDOW)
    return DecoderConfig(
        **_shape(keys),
        head=keys.maybe("head_dim"),
        blocks=tuple(kind._replace(experts=experts is not None) for kind in kinds),
        act=_gated(keys),
        epsilon=keys.real("rms_norm_eps", epsilon),
        base=_base(keys, base),
        tied=keys.truth("tie_word_embeddings", False),
        experts=experts,
    )


def _experts(keys: Keys, key: str) -> tuple[int, int]:
    """Return the number of experts, and how many of them a token takes."""
    many, top = keys.whole(key, most=_MOST_EXPERTS), keys.whole("num_experts_per_tok", most=_MOST_TAKEN)
    keys.at_most("num_experts_per_tok", top, key, many)
    return many, top


def _silu_only(keys: Keys) -> None:
    keys.only("hidden_act", "silu", "experts gate by silu here")


def _mixtral(keys: Keys) -> DecoderConfig:
    _silu_only(keys)
    many, top = _experts(keys, "num_local_experts")
    sizes = ExpertSizes(many, top, keys.whole("intermediate_size"))
    return _mistral(keys, sizes, 1e-5, 1e6)


def _qwen(keys: Keys, three: bool, experts: ExpertSizes | None = None, dense: Sequence[int] = ()) -> DecoderConfig:
    """Return the decoder of Qwen2 or Qwen3, which have a window from some block on."""
    many = _layers(keys)
    windowed = keys.truth("use_sliding_window", False)
    window = _window(keys, _USUAL_WINDOW if windowed else None)
    keys.ignores("max_window_layers")
    first = keys.whole("max_window_layers", 28, least=0) if windowed else many
    kinds = _windows(keys, many, [at >= first for at in range(many)], window)
    sparse = [experts is not None and at not in dense for at in range(many)]
    return DecoderConfig(
        **_shape(keys, parted=not three),
        head=keys.whole("head_dim", 128) if three else keys.maybe("head_dim"),
        blocks=tuple(BlockKind(kind.window, mixed) for kind, mixed in zip(kinds, sparse, strict=True)),
        act=_gated(keys),
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 1e4),
        biases=_attention_biases(keys) if three else _QKV,
        head_norms=three,
        tied=keys.truth("tie_word_embeddings", False),
        experts=experts,
    )


def _qwen3_moe(keys: Keys) -> DecoderConfig:
    _silu_only(keys)
    keys.only("decoder_sparse_step", 1, "every block has experts here, but those of mlp_only_layers")
    many, top = _experts(keys, "num_experts")
    inner, total = keys.whole("moe_intermediate_size"), keys.truth("norm_topk_prob", False)
    keys.ignores("mlp_only_layers")
    dense = keys.data.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(each) is int for each in dense):
        keys.wrong("mlp_only_layers", "no list of numbers of layers; write one such as [0]")
        dense = []
    return _qwen(keys, True, ExpertSizes(many, top, inner, renormalize=total), dense)


def _gemma(keys: Keys) -> DecoderConfig:
    # The first files say gelu, and the library takes the form by tanh.
    act = keys.word("hidden_activation", _GATED, "gelu_pytorch_tanh")
    keys.ignores("hidden_act")
    return DecoderConfig(
        **_shape(keys, parted=False),
        head=keys.whole("head_dim", 256),
        blocks=(PLAIN,) * _layers(keys),
        act=act,
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 1e4),
        biases=_attention_biases(keys),
        tied=keys.truth("tie_word_embeddings", True),
    )


def _gemma2(keys: Keys) -> DecoderConfig:
    many, window = _layers(keys), keys.whole("sliding_window", 4096)
    keys.ignores("hidden_act", "query_pre_attn_scalar")
    caps = keys.cap("attn_logit_softcapping", 50.0), keys.cap("final_logit_softcapping", 30.0)
    return DecoderConfig(
        **_shape(keys, parted=False),
        head=keys.whole("head_dim", 256),
        blocks=_windows(keys, many, [at % 2 == 0 for at in range(many)], window),
        act=_gated(keys, "hidden_activation", "gelu_pytorch_tanh"),
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 1e4),
        biases=_attention_biases(keys),
        norms_behind=True,
        score_cap=caps[0],
        logit_cap=caps[1],
        tied=keys.truth("tie_word_embeddings", True),
    )


_GEMMA_3 = {
    "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 262208,
}  # fmt: skip
"""Sizes that files of Gemma 3 leave out where they are these."""


def _gemma3(keys: Keys) -> DecoderConfig:
    many, window = _layers(keys, 26), keys.whole("sliding_window", 4096)
    # Newer files have it with an underscore.
    kept = "_sliding_window_pattern"
    every = keys.whole(kept if kept in keys.data else "sliding_window_pattern", 6)
    keys.ignores("hidden_act", "query_pre_attn_scalar")
    keys.only("use_bidirectional_attention", False, "a token sees none behind it")
    caps = keys.cap("attn_logit_softcapping", 0.0), keys.cap("final_logit_softcapping", 0.0)
    return DecoderConfig(
        **_shape(keys, parted=False, usual=_GEMMA_3),
        head=keys.whole("head_dim", 256),
        blocks=_windows(keys, many, [(at + 1) % every != 0 for at in range(many)], window),
        act=_gated(keys, "hidden_activation", "gelu_pytorch_tanh"),
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 1e6),
        near_base=keys.real("rope_local_base_freq", 1e4),
        biases=_attention_biases(keys),
        head_norms=True,
        norms_behind=True,
        score_cap=caps[0],
        logit_cap=caps[1],
        tied=keys.truth("tie_word_embeddings", True),
    )


def _gpt2(keys: Keys) -> DecoderConfig:
    width, heads, positions = keys.whole("n_embd"), keys.whole("n_head"), keys.whole("n_positions")
    keys.multiple("n_embd", width, "n_head", heads)
    act, tanh = keys.word("activation_function", _PLAIN, "gelu_new")
    keys.ignores("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    keys.only("add_cross_attention", False, "queries see keys of their own sequence alone")
    return DecoderConfig(
        width=width,
        heads=heads,
        inner=keys.maybe("n_inner") or 4 * width,
        vocabulary=keys.whole("vocab_size"),
        context=min(_USUAL_CONTEXT, positions),
        blocks=(PLAIN,) * keys.whole("n_layer", most=MOST_BLOCKS),
        act=act,
        approximate=tanh,
        epsilon=keys.real("layer_norm_epsilon", 1e-5),
        norm="layer_norm",
        positions=positions,
        biases=frozenset(("query_key_value", "projection", "feed_forward_up", "feed_forward_down")),
        joined=True,
        tied=keys.truth("tie_word_embeddings", True),
    )


def _phi(keys: Keys) -> DecoderConfig:
    act, tanh = keys.word("hidden_act", _PLAIN, "gelu_new")
    keys.only("qk_layernorm", False, "norms of queries and keys with shifts")
    sizes = _shape(keys, kv_heads=False)
    biases = _QKV | {"projection", "feed_forward_up", "feed_forward_down", "logits"}
    return DecoderConfig(
        **sizes,
        blocks=(PLAIN,) * _layers(keys),
        act=act,
        approximate=tanh,
        epsilon=keys.real("layer_norm_eps", 1e-5),
        norm="layer_norm",
        base=_base(keys, 1e4),
        turned=_turned(keys, sizes, 0.5),
        biases=biases,
        parallel=True,
        tied=keys.truth("tie_word_embeddings", False),
    )


def _phi3(keys: Keys) -> DecoderConfig:
    sizes = _shape(keys, kv_heads=False)
    keys.only("attention_bias", False, "the products of this model type have no biases")
    keys.only("full_attn_mod", 1, "all blocks are alike")
    keys.only("interpolate_factor", 1, "positions are not stretched")
    return DecoderConfig(
        **sizes,
        blocks=_same_window(keys),
        act=_gated(keys),
        epsilon=keys.real("rms_norm_eps", 1e-5),
        base=_base(keys, 1e4),
        turned=_turned(keys, sizes, 1.0),
        joined=True,
        tied=keys.truth("tie_word_embeddings", False),
    )


def _turned(keys: Keys, sizes: Mapping[str, int], usual: float) -> int:
    """Return the elements of a head that turn; 0: all."""
    head = sizes["width"] // sizes["heads"]
    turned = int(head * keys.real("partial_rotary_factor", usual, most=1.0))
    return turned if turned < head else 0


def _deepseek(keys: Keys, three: bool) -> DecoderConfig:
    """Return the decoder of DeepSeek-V2 or V3, whose experts are chosen in other ways."""
    _silu_only(keys)
    many, (experts, top) = _layers(keys), _experts(keys, "n_routed_experts")
    inner, shared = keys.whole("moe_intermediate_size"), keys.whole("n_shared_experts", 1, least=0)
    dense = keys.whole("first_k_dense_replace", 3 if three else None, least=0)
    keys.only("moe_layer_freq", 1, "every block behind the first dense ones has experts")
    keys.only("attention_bias", False, "products of latent attention have no biases here")
    odds = "sigmoid" if three else "softmax"
    keys.only("scoring_func", odds, f"odds of experts are the {odds} of their scores")
    ways = ("noaux_tc",) if three else ("greedy", "group_limited_greedy")
    keys.word("topk_method", {each: each for each in ways}, ways[0])
    groups = keys.whole("n_group", 8 if three else 1), keys.whole("topk_group", 4 if three else 1)
    if groups[0] > groups[1]:
        says = f"n_group, topk_group: experts are chosen among all, not among {groups[1]} of {groups[0]} groups"
        keys.notes.append(f"{says} that are chosen first")
    keys.tells("num_nextn_predict_layers", "is of blocks that predict further tokens, which no run of a token needs")
    keys.ignores("routed_scaling_factor", "head_dim", "qk_head_dim", "rope_interleave")
    keys.notes.append("keys and values of the cache are latent vectors; products with them go to queries and results")
    sizes = _shape(keys, kv_heads=False, parted=False)
    latent = LatentSizes(
        latent=keys.whole("kv_lora_rank"),
        queries=keys.maybe("q_lora_rank") or 0,
        plain=keys.whole("qk_nope_head_dim"),
        turned=keys.whole("qk_rope_head_dim"),
        value=keys.whole("v_head_dim"),
    )
    return DecoderConfig(
        **sizes,
        blocks=tuple(BlockKind(experts=at >= dense) for at in range(many)),
        act=_gated(keys),
        epsilon=keys.real("rms_norm_eps", 1e-6),
        base=_base(keys, 1e4),
        tied=keys.truth("tie_word_embeddings", False),
        experts=ExpertSizes(experts, top, inner, shared * inner, odds, three, keys.truth("norm_topk_prob", three)),
        latent=latent,
    )


MODEL_TYPES: dict[str, Callable[[Keys], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": lambda keys: _qwen(keys, three=False),
    "qwen3": lambda keys: _qwen(keys, three=True),
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "phi": _phi,
    "phi3": _phi3,
    "deepseek_v2": lambda keys: _deepseek(keys, three=False),
    "deepseek_v3": lambda keys: _deepseek(keys, three=True),
}
"""What reads the keys of each model type."""
WITH_PICTURES = {"gemma3": "gemma3_text"}
"""Model types of words and pictures, whose key `text_config` has the keys of another type."""
