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
_LAYER_NORM = "layer_norm_eps", 1e-5
"""The usual key of the epsilon of layer norms, and what holds where it is missing."""
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
_PLAIN_PRODUCTS = frozenset(("projection", "feed_forward_up", "feed_forward_down"))
_ALL_PLAIN = _QKV | _PLAIN_PRODUCTS
_ALL_JOINED = _PLAIN_PRODUCTS | {"query_key_value"}
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
    keys.notes += [f"rope_scaling {_ANGLES}"] * bool(keys.inside("rope_scaling"))
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


def _rope(keys: Keys, key: str, usual: float, kind: str = _FULL, most: float = 1e12) -> float:
    """Return a number by which queries and keys turn. Newer files have it among the parameters of the rope, some of
    them for each kind of blocks.
    """
    told, path = keys.inside("rope_parameters"), f"{keys.path}.rope_parameters".lstrip(".")
    if kind in told:
        told, path = Keys(keys.document, told, path, keys.problems).inside(kind), f"{path}.{kind}"
    note = f"rope_parameters {_ANGLES}"
    keys.notes += [note] * (told.get("rope_type", "default") != "default" and note not in keys.notes)
    if key in told:
        keys.ignores(key)
        return Keys(keys.document, told, path, keys.problems).real(key, usual, most=most)
    return keys.real(key, usual, most=most)


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


def _activation(keys: Keys, key: str, usual: str) -> dict[str, Any]:
    """Return the op of a feed-forward part without a gate, and whether it is worked out by tanh."""
    act, tanh = keys.word(key, _PLAIN, usual)
    return {"act": act, "approximate": tanh}


def _decoder(
    keys: Keys, sizes: Mapping[str, Any], epsilon: tuple[str, float] = ("rms_norm_eps", 1e-6), base: float = 1e4,
    tied: bool = False, **more: Any,
) -> DecoderConfig:  # fmt: skip
    """Return a decoder of these sizes, for what else most model types have: `more` says what is otherwise of this one.

    `epsilon` is its key with what holds where that is missing, as `base` and `tied` do for theirs.
    """
    made = {"blocks": more.pop("blocks", None) or (PLAIN,) * _layers(keys), **more}
    made |= {} if "act" in more else {"act": _gated(keys)}
    made |= {"epsilon": keys.real(*epsilon), "base": _rope(keys, "rope_theta", base)}
    return DecoderConfig(**sizes, **made, tied=keys.truth("tie_word_embeddings", tied))


# ---- the model types


def _llama(keys: Keys) -> DecoderConfig:
    biases = _attention_biases(keys) | (_GATED_PRODUCTS if keys.truth("mlp_bias", False) else frozenset())
    return _decoder(keys, _shape(keys, kv_heads=False), head=keys.maybe("head_dim"), biases=biases)


def _mistral(keys: Keys, experts: ExpertSizes | None = None, epsilon: float = 1e-6, base: float = 1e4) -> DecoderConfig:
    kinds = _same_window(keys, None if experts else _USUAL_WINDOW)
    blocks = tuple(kind._replace(experts=experts is not None) for kind in kinds)
    more: dict[str, Any] = {"head": keys.maybe("head_dim"), "blocks": blocks, "experts": experts}
    return _decoder(keys, _shape(keys), ("rms_norm_eps", epsilon), base, **more)


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
    return _decoder(
        keys,
        _shape(keys, parted=not three),
        head=keys.whole("head_dim", 128) if three else keys.maybe("head_dim"),
        blocks=tuple(BlockKind(kind.window, mixed) for kind, mixed in zip(kinds, sparse, strict=True)),
        biases=_attention_biases(keys) if three else _QKV,
        head_norms=three,
        experts=experts,
    )


def _qwen_moe(keys: Keys, three: bool) -> DecoderConfig:
    """Return the decoder of Qwen2 or Qwen3 whose blocks have experts, all of them unless the file says which."""
    _silu_only(keys)
    many, top = _experts(keys, "num_experts")
    inner, total = keys.whole("moe_intermediate_size"), keys.truth("norm_topk_prob", False)
    shared = 0 if three else keys.whole("shared_expert_intermediate_size")
    step = keys.whole("decoder_sparse_step", 1)
    keys.ignores("mlp_only_layers")
    dense = keys.data.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(each) is int for each in dense):
        keys.wrong("mlp_only_layers", "no list of numbers of layers; write one such as [0]")
        dense = []
    dense = [at for at in range(_layers(keys)) if at in dense or (at + 1) % step]
    sizes = ExpertSizes(many, top, inner, shared, renormalize=total, weighed=bool(shared))
    return _qwen(keys, three, sizes, dense)


def _gemma(keys: Keys) -> DecoderConfig:
    # The first files say gelu, and the library takes the form by tanh.
    act = keys.word("hidden_activation", _GATED, "gelu_pytorch_tanh")
    keys.ignores("hidden_act")
    more: dict[str, Any] = {"head": keys.whole("head_dim", 256), "biases": _attention_biases(keys)}
    return _decoder(keys, _shape(keys, parted=False), tied=True, act=act, **more)


def _gemma2(keys: Keys) -> DecoderConfig:
    many, window = _layers(keys), keys.whole("sliding_window", 4096)
    # The library does not read the longer of the window's two keys.
    keys.ignores("hidden_act", "query_pre_attn_scalar", "sliding_window_size")
    return _decoder(
        keys,
        _shape(keys, parted=False),
        tied=True,
        head=keys.whole("head_dim", 256),
        blocks=_windows(keys, many, [at % 2 == 0 for at in range(many)], window),
        act=_gated(keys, "hidden_activation", "gelu_pytorch_tanh"),
        biases=_attention_biases(keys),
        norms_behind=True,
        score_cap=keys.cap("attn_logit_softcapping", 50.0),
        logit_cap=keys.cap("final_logit_softcapping", 30.0),
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
    near = keys.real("rope_local_base_freq", 1e4)
    return _decoder(
        keys,
        _shape(keys, parted=False, usual=_GEMMA_3),
        base=1e6,
        tied=True,
        head=keys.whole("head_dim", 256),
        blocks=_windows(keys, many, [(at + 1) % every != 0 for at in range(many)], window),
        act=_gated(keys, "hidden_activation", "gelu_pytorch_tanh"),
        near_base=_rope(keys, "rope_theta", near, _SLIDING) if _SLIDING in keys.inside("rope_parameters") else near,
        biases=_attention_biases(keys),
        head_norms=True,
        norms_behind=True,
        score_cap=keys.cap("attn_logit_softcapping", 0.0),
        logit_cap=keys.cap("final_logit_softcapping", 0.0),
    )


def _gpt2(keys: Keys) -> DecoderConfig:
    width, heads, positions = keys.whole("n_embd"), keys.whole("n_head"), keys.whole("n_positions")
    keys.multiple("n_embd", width, "n_head", heads)
    act = _activation(keys, "activation_function", "gelu_new")
    keys.ignores("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    keys.only("add_cross_attention", False, "queries see keys of their own sequence alone")
    return DecoderConfig(
        width=width,
        heads=heads,
        inner=keys.maybe("n_inner") or 4 * width,
        vocabulary=keys.whole("vocab_size"),
        context=min(_USUAL_CONTEXT, positions),
        blocks=(PLAIN,) * keys.whole("n_layer", most=MOST_BLOCKS),
        **act,
        epsilon=keys.real("layer_norm_epsilon", 1e-5),
        norm="layer_norm",
        positions=positions,
        biases=_ALL_JOINED,
        joined=True,
        tied=keys.truth("tie_word_embeddings", True),
    )


def _phi(keys: Keys) -> DecoderConfig:
    act = _activation(keys, "hidden_act", "gelu_new")
    keys.only("qk_layernorm", False, "norms of queries and keys with shifts")
    sizes = _shape(keys, kv_heads=False)
    more: dict[str, Any] = {"turned": _turned(keys, sizes, 0.5), "biases": _ALL_PLAIN | {"logits"}, "parallel": True}
    return _decoder(keys, sizes, _LAYER_NORM, norm="layer_norm", **act, **more)


def _phi3(keys: Keys) -> DecoderConfig:
    sizes = _shape(keys, kv_heads=False)
    keys.only("attention_bias", False, "the products of this model type have no biases")
    keys.only("full_attn_mod", 1, "all blocks are alike")
    keys.only("interpolate_factor", 1, "positions are not stretched")
    more: dict[str, Any] = {"blocks": _same_window(keys), "turned": _turned(keys, sizes, 1.0), "joined": True}
    return _decoder(keys, sizes, ("rms_norm_eps", 1e-5), **more)


def _phimoe(keys: Keys) -> DecoderConfig:
    _silu_only(keys)
    many, top = _experts(keys, "num_local_experts")
    keys.ignores("input_jitter_noise")
    keys.notes.append(
        "experts are chosen by the shares of a softmax here, whose masks other runs change with each choice"
    )
    return _decoder(
        keys,
        _shape(keys),
        ("rms_norm_eps", 1e-5),
        base=1e6,
        head=keys.maybe("head_dim"),
        blocks=tuple(kind._replace(experts=True) for kind in _same_window(keys)),
        norm="layer_norm",
        biases=_attention_biases(keys) | ({"logits"} if keys.truth("lm_head_bias", False) else set()),
        experts=ExpertSizes(many, top, keys.whole("intermediate_size")),
    )


def _stablelm(keys: Keys) -> DecoderConfig:
    sizes = _shape(keys)
    keys.only("use_parallel_residual", False, "the feed-forward part reads what the attention adds to")
    keys.only("qk_layernorm", False, "norms of each head with shifts of their own")
    keys.ignores("norm_eps")
    biases = _QKV if keys.truth("use_qkv_bias", False) else frozenset()
    return _decoder(keys, sizes, _LAYER_NORM, norm="layer_norm", turned=_turned(keys, sizes, 0.25), biases=biases)


def _starcoder2(keys: Keys) -> DecoderConfig:
    act = _activation(keys, "hidden_act", "gelu_pytorch_tanh")
    keys.only("mlp_type", "default", "the feed-forward part has no gate")
    keys.only("norm_type", "layer_norm", "norms have a scale and a shift")
    # What the library reads are hidden_act and norm_epsilon.
    keys.ignores("activation_function", "layer_norm_epsilon", "embedding_dropout", "residual_dropout")
    more: dict[str, Any] = {
        "blocks": _same_window(keys),
        "biases": _ALL_PLAIN if keys.truth("use_bias", True) else frozenset(),
    }
    return _decoder(keys, _shape(keys), ("norm_epsilon", 1e-5), tied=True, norm="layer_norm", **act, **more)


def _gpt_neox(keys: Keys) -> DecoderConfig:
    act = _activation(keys, "hidden_act", "gelu")
    biased = keys.truth("attention_bias", True)
    sizes = _shape(keys, kv_heads=False)
    turned = "partial_rotary_factor" if "partial_rotary_factor" in keys.inside("rope_parameters") else "rotary_pct"
    return _decoder(
        keys,
        sizes,
        _LAYER_NORM,
        base=keys.real("rotary_emb_base", 1e4),
        **act,
        norm="layer_norm",
        turned=_turned(keys, sizes, 0.25, turned),
        biases=_ALL_JOINED if biased else _PLAIN_PRODUCTS - {"projection"},
        parallel=keys.truth("use_parallel_residual", True),
        own_norm=True,
        joined=True,
    )


def _falcon(keys: Keys) -> DecoderConfig:
    act = _activation(keys, "activation", "gelu")
    newer, biased = keys.truth("new_decoder_architecture", False), keys.truth("bias", False)
    keys.only("alibi", False, "queries and keys turn by their positions")
    keys.only("apply_residual_connection_post_layernorm", False, "sums are of what norms read")
    keys.ignores("ff_factor", "multi_query")
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    keys.multiple("hidden_size", width, "num_attention_heads", heads)
    # The number of heads of keys counts in newer files alone.
    many = keys.whole("num_kv_heads", heads)
    shared = many if newer else 1 if keys.truth("multi_query", True) else heads
    keys.multiple("num_attention_heads", heads, "num_kv_heads", shared)
    sizes: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "kv_heads": shared,
        "inner": keys.maybe("ffn_hidden_size") or 4 * width,
    }
    sizes |= {"vocabulary": keys.whole("vocab_size")}
    sizes |= {"context": min(_USUAL_CONTEXT, keys.whole("max_position_embeddings", 2048))}
    return _decoder(
        keys,
        sizes,
        ("layer_norm_epsilon", 1e-5),
        tied=True,
        **act,
        norm="layer_norm",
        biases=_ALL_JOINED if biased else frozenset(),
        parallel=keys.truth("parallel_attn", True) or newer,
        own_norm=keys.whole("num_ln_in_parallel_attn", 2 if newer else 1) > 1,
        joined=True,
    )


def _granite(keys: Keys) -> DecoderConfig:
    keys.ignores("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    keys.notes.append(
        "multipliers of embeddings, sums, scores and logits are taken as part of the weights ahead of them"
    )
    return _llama(keys)


def _turned(keys: Keys, sizes: Mapping[str, int], usual: float, key: str = "partial_rotary_factor") -> int:
    """Return the elements of a head that turn; 0: all."""
    head = sizes["width"] // sizes["heads"]
    turned = int(head * _rope(keys, key, usual, most=1.0))
    return turned if turned < head else 0


def _deepseek(keys: Keys, three: bool) -> DecoderConfig:
    """Return the decoder of DeepSeek-V2 or V3, whose experts are chosen in other ways."""
    _silu_only(keys)
    many, (experts, top) = _layers(keys), _experts(keys, "n_routed_experts")
    inner, shared = keys.whole("moe_intermediate_size"), keys.whole("n_shared_experts", 1 if three else 2, least=0)
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
        # Missing is another thing than null, which is none.
        queries=keys.maybe("q_lora_rank") or 0 if "q_lora_rank" in keys.data else keys.whole("q_lora_rank", 1536),
        plain=keys.whole("qk_nope_head_dim"),
        turned=keys.whole("qk_rope_head_dim"),
        value=keys.whole("v_head_dim"),
    )
    blocks = tuple(BlockKind(experts=at >= dense) for at in range(many))
    mixed = ExpertSizes(experts, top, inner, shared * inner, odds, three, keys.truth("norm_topk_prob", three))
    return _decoder(keys, sizes, blocks=blocks, experts=mixed, latent=latent)


MODEL_TYPES: dict[str, Callable[[Keys], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": lambda keys: _qwen(keys, three=False),
    "qwen3": lambda keys: _qwen(keys, three=True),
    "qwen2_moe": lambda keys: _qwen_moe(keys, three=False),
    "qwen3_moe": lambda keys: _qwen_moe(keys, three=True),
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "phi": _phi,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "granite": _granite,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "deepseek_v2": lambda keys: _deepseek(keys, three=False),
    "deepseek_v3": lambda keys: _deepseek(keys, three=True),
    "kimi_k2": lambda keys: _deepseek(keys, three=True),
}
"""What reads the keys of each model type."""
WITH_PICTURES = {"gemma3": "gemma3_text"}
"""Model types of words and pictures, whose key `text_config` has the keys of this type, unless it names another."""
