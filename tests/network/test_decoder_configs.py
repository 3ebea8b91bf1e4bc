"""Language models by their config: parameters, layers and values; what is told, and what is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checks import ESTIMATE
from tests.covering import covering
from tests.flow.lowered_once import lowered_once
from tests.invoked import tpusim
from tests.network.test_language_models import parameters_of
from tests.strategies import cases
from tpusim import Workload, load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import hbm_need
from tpusim.input.document import Document
from tpusim.network.formats import ModelOptions
from tpusim.network.formats.decoder_config.model_types import MODEL_TYPES
from tpusim.network.workload_file import described, open_workload, workload_of, yaml_of

CONFIGS = Path(__file__).parent / "model_configs"
COUNTS: Mapping[str, Mapping[str, Any]] = yaml.safe_load((CONFIGS / "counts.yaml").read_text())
NAMES = sorted(COUNTS)
QUICK = "gpt2_small", "gemma3_1b", "falcon_7b", "phi3_mini", "qwen3_8b", "stablelm2_1_6b"
"""Some with biases, windows, shared keys, joined products, norms of heads and parts that turn, all whole."""
SHIPPED = ("llama3_8b", "mixtral_8x7b", "gemma2_9b", "gpt2_small")
TIED = "gemma", "gpt2", "starcoder2", "falcon"
"""Model types whose last product has the weights of the embeddings, unless a file says otherwise."""
SMALL = {
    "hidden_size": 32, "n_embd": 32, "intermediate_size": 24, "moe_intermediate_size": 16, "vocab_size": 40,
    "num_attention_heads": 4, "n_head": 4, "num_hidden_layers": 2, "n_layer": 1, "n_positions": 64,
    "num_key_value_heads": 2, "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 5, "first_k_dense_replace": 1, "kv_lora_rank": 16,
    "q_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "partial_rotary_factor": 0.5,
    "shared_expert_intermediate_size": 24, "num_kv_heads": 2, "rotary_pct": 0.5,
}  # fmt: skip


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


def small(name: str, **changes: Any) -> dict[str, Any]:
    """The config with small sizes in place of those that it has."""
    given = config(name)
    less = {key: each for key, each in SMALL.items() if given.get(key) is not None}
    # Two kinds of blocks in a row, and one more behind them.
    less |= {"num_hidden_layers": 5, "sliding_window_pattern": 2} if name == "gemma3_1b" else {}
    return {**given, **less, **changes}


def saved(folder: Path, given: Mapping[str, Any], name: str = "config") -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(given, indent=2))
    return path


def model(path: str | Path, phase: str = "decode", batch: int = 1, **dims: int) -> Workload:
    return workload_of(open_workload(path, ModelOptions(dims, phase=phase)), batch)


def notes(document: Document) -> str:
    return "\n".join(document.notes)


def parameters_told(document: Document) -> int:
    return int(document.notes[0].split()[0].replace(",", ""))


def parameters(work: Workload, given: Mapping[str, Any]) -> int:
    """Parameters that the layers of a prompt have; those of embeddings that the last product shares count once."""
    sizes, shared = (
        dict(work.sizes),
        given.get("tie_word_embeddings", given["model_type"].startswith(TIED)),
    )
    # Numbers of experts, and positions of GPT-2, are operands of additions.
    corrections = sum(layer.channels for layer in work.layers if "odds_corrected" in layer.name)  # type: ignore[attr-defined]
    positions = given.get("n_positions", 0) * sizes["width"]
    return parameters_of(work) + corrections + positions - shared * sizes["vocabulary"] * sizes["width"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(name: str) -> None:
    path, published = CONFIGS / f"{name}.json", COUNTS[name]["parameters"]
    assert parameters_told(described(path)) == published


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.long] * (each not in QUICK)) for each in NAMES],
)
def test_layers_have_the_parameters_that_are_published(name: str) -> None:
    """Of a prompt in which every expert has some tokens."""
    work = model(CONFIGS / f"{name}.json", "prefill", context=64)
    assert parameters(work, config(name)) == COUNTS[name]["parameters"]


@pytest.mark.parametrize(("name", "phase"), covering(1, SHIPPED, ["decode", "prefill"]))
def test_the_shipped_models_are_those_of_their_configs(name: str, phase: str) -> None:
    """Layer by layer, names included. The paper's Gemma 2 has 128 more tokens than the one on Hugging Face."""
    dims = {"context": 256} | ({"vocabulary": 256_128} if name == "gemma2_9b" else {})
    made, shipped = model(CONFIGS / f"{name}.json", phase, 2, **dims), model(name, phase, 2, context=256)
    assert made == replace(shipped, source=made.source)


EVERY_OP = "deepseek_v3", "falcon_40b", "gemma2_9b"
"""Models that have between them all ops of layers that any has."""


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        *zip(EVERY_OP, ("decode", "prefill", "prefill"), strict=True),
        *(pytest.param(name, phase, marks=pytest.mark.long) for name, phase in product(NAMES, ("decode", "prefill"))),
    ],
)
def test_both_phases_run(tmp_path: Path, name: str, phase: str) -> None:
    made = simulate(small_model(tmp_path, name, phase), load_hardware("tiny_4x4", ESTIMATE), check=False)
    assert made.total.cycles > 0


@pytest.mark.long
def test_models_of_every_op_are_the_quick_ones(tmp_path: Path) -> None:
    def ops(names: Sequence[str]) -> set[str]:
        works = (small_model(tmp_path, name, phase) for name in names for phase in ("decode", "prefill"))
        return {layer.op for work in works for layer in work.layers}

    assert ops(EVERY_OP) == ops(NAMES)


def small_model(folder: Path, name: str, phase: str) -> Workload:
    return model(saved(folder, small(name)), phase, 2, context=9)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_output_is_right_in_both_engines(tmp_path: Path, name: str, phase: str) -> None:
    work = small_model(tmp_path, name, phase)
    assert simulate(work, load_hardware("tiny_4x4", ESTIMATE), engine="both").correct


@pytest.mark.parametrize(("name", "phase"), covering(1, NAMES, ["decode", "prefill"]))
def test_what_is_imported_is_the_same_and_all_of_it_is_read(tmp_path: Path, name: str, phase: str) -> None:
    path = saved(tmp_path, small(name), name)
    (tmp_path / "made.yaml").write_text(yaml_of(described(path)))
    work = model(path, phase, 3, context=7)
    if phase == "prefill":
        assert parameters_told(described(path)) == parameters(work, small(name))
    assert model(tmp_path / "made.yaml", phase, 3, context=7) == work
    # All that is made is read, but the last.
    read = {each for sources in work.sources().values() for source in sources for each in source.names}
    assert [layer.name for layer in work.layers if layer.name not in read] == [work.layers[-1].name]


READS = {
    "phi_2": {
        "query_turned_1": ("query_1",),
        "attention_1.scores": ("query_turned_1", "query_1", "key_turned_1", "key_1"),
        "attention_1.values": ("attention_1.softmax", "value_1"),
        "attention_sum_2": ("projection_2", "feed_forward_sum_1"),
        "feed_forward_up_1": ("attention_norm_1",),
        "feed_forward_sum_1": ("feed_forward_down_1", "attention_sum_1"),
        "logits": ("last_norm",),
    },
    "phi3_mini": {
        "query_turned_1": ("query_key_value_1",),
        "key_turned_1": ("query_key_value_1",),
        "attention_1.scores": ("query_turned_1", "key_turned_1"),
        "attention_1.values": ("attention_1.softmax", "query_key_value_1"),
        "feed_forward_norm_1": ("attention_sum_1",),
        "act_1": ("gate_up_1",),
        "down_1": ("act_1",),
    },
    "qwen3_8b": {
        "query_norm_1": ("query_1",),
        "query_turned_1": ("query_norm_1",),
        "key_turned_1": ("key_norm_1",),
        "attention_1.scores": ("query_turned_1", "key_turned_1"),
        "projection_1": ("attention_1.values",),
    },
    "gemma3_1b": {
        "far_attention_norm_1": ("near_1_feed_forward_sum_1",),
        "near_1_attention_norm_2": ("far_feed_forward_sum_1",),
        "near_2_attention_norm_1": ("far_feed_forward_sum_2",),
        "near_1_attention_sum_1": ("near_1_attention_behind_norm_1", "embedding"),
        "near_1_feed_forward_sum_1": ("near_1_feed_forward_behind_norm_1", "near_1_attention_sum_1"),
    },
    "qwen3_30b_a3b": {
        "router_1": ("feed_forward_norm_1",),
        "chosen_1": ("odds_1",),
        "experts_1.gate_1": ("feed_forward_norm_1",),
        "experts_1.weigh": ("experts_1.down_1", "experts_1.down_2", "experts_1.down_3", "experts_1.down_4", "chosen_1"),
        "feed_forward_sum_1": ("experts_1.sum", "attention_sum_1"),
    },
    "deepseek_v3": {
        "dense_query_1": ("dense_query_norm_1",),
        "dense_latent_down_1": ("dense_attention_norm_1",),
        "dense_latent_norm_1": ("dense_latent_down_1",),
        "dense_key_turned_1": ("dense_latent_down_1",),
        "dense_query_turned_1": ("dense_query_1",),
        "dense_query_up_1": ("dense_query_1",),
        "dense_attention_1.scores": (
            "dense_query_up_1", "dense_query_turned_1", "dense_latent_norm_1", "dense_key_turned_1",
        ),
        "dense_attention_1.values": ("dense_attention_1.softmax", "dense_latent_norm_1", "dense_key_turned_1"),
        "dense_value_up_1": ("dense_attention_1.values",),
        "dense_projection_1": ("dense_value_up_1",),
        "mixed_attention_norm_1": ("dense_feed_forward_sum_1",),
        "mixed_odds_corrected_1": ("mixed_odds_1",),
        "mixed_chosen_1": ("mixed_odds_corrected_1",),
        "mixed_shared_gate_1": ("mixed_feed_forward_norm_1",),
        "mixed_experts_sum_1": ("mixed_shared_down_1", "mixed_experts_1.sum"),
        "mixed_feed_forward_sum_1": ("mixed_experts_sum_1", "mixed_attention_sum_1"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [*READS])
def test_layers_read_what_those_of_the_model_read(tmp_path: Path, name: str) -> None:
    reads = model(saved(tmp_path, small(name)), "decode", 2, context=8).inputs()
    assert {each: reads[each] for each in READS[name]} == READS[name]


# ---- sizes


@cache
def folder_of(name: str, folder: Path) -> Path:
    return saved(folder, small(name), name)


@settings(deadline=None, max_examples=cases(usual=15))
@given(data=st.data())
def test_parameters_follow_from_the_sizes_that_a_run_asks_for(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Told by the note, and had by the layers."""
    name = data.draw(st.sampled_from(NAMES))
    path = folder_of(name, tmp_path_factory.getbasetemp())
    sizes = described(path).data["sizes"]
    dims = {"context": 16}
    for each in ("layers", "pairs", "mixed_layers", "inner", "vocabulary", "latent", "expert_inner", "experts"):
        if each in sizes and data.draw(st.booleans()):
            # Each expert has some of the 16 tokens, which take two.
            dims[each] = data.draw(st.integers(2, 6))
    if "kv_heads" in sizes and data.draw(st.booleans()):
        dims["kv_heads"] = data.draw(st.integers(1, 3))
        dims["heads"] = dims["kv_heads"] * data.draw(st.integers(1, 3))
        dims["head"] = 8
    if data.draw(st.booleans()):
        dims["width"] = 8 * dims.get("heads", 4) * data.draw(st.integers(1, 2))
    if name == "gpt2_small":
        dims.pop("width", 0)
    asked = ModelOptions(dims, phase="prefill")
    work = workload_of(open_workload(path, asked), 1)
    assert parameters_told(described(path, asked)) == parameters(work, small(name))
    assert {each: size for each, size in work.sizes if each in dims} == dims


@pytest.mark.parametrize(
    "name",
    ["llama3_8b", "mixtral_8x7b", "gemma2_9b", "gpt2_small", pytest.param("llama3_70b", marks=pytest.mark.long)],
)
def test_widths_and_depths_of_the_shipped_models_are_sizes(name: str) -> None:
    usual = model(name, context=8)
    inner = "expert_inner" if name == "mixtral_8x7b" else "inner"
    layers = "pairs" if name == "gemma2_9b" else "layers"
    less = model(name, context=8, **{layers: 2, inner: 64, "vocabulary": 640})
    assert len(less.layers) < len(usual.layers)
    assert less.layers[-2 if name == "gemma2_9b" else -1].shapes(1)["ofmap"][0] == 640
    assert any(layer.text.startswith("1x64>") for layer in less.layers)
    sizes = dict(usual.sizes)
    double = model(name, context=8, **{each: 2 * sizes[each] for each in ("width", "heads")})
    assert double.layers[0].shapes(1)["ofmap"][0] == 2 * usual.layers[0].shapes(1)["ofmap"][0]


def windows(work: Workload, words: Sequence[str]) -> list[str]:
    """The kind of each block, by the scores that its queries make."""
    found = [layer.shapes(1)["ofmap"][0] // work.batch for layer in work.layers if ".scores" in layer.name]
    return ["sliding_attention" if each < 40 * 4 else "full_attention" for each in found]


@settings(deadline=None, max_examples=cases(1 / 2))
@given(words=st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=1, max_size=24))
def test_blocks_come_in_the_order_of_the_config(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    """However their kinds are mixed, and in few blocks of the file."""
    given = small("qwen3_8b", layer_types=words, num_hidden_layers=len(words), sliding_window=5, num_key_value_heads=4)
    path = saved(tmp_path_factory.getbasetemp(), given, "mixed")
    assert windows(model(path, context=40), words) == words
    entries = [each for each in described(path).data["layers"] if "block" in each]
    if len(words) > 2 and words == words[:2] * (len(words) // 2):
        assert len(entries) == 1


def test_windows_that_a_file_does_not_name_are_those_of_its_model_type(tmp_path: Path) -> None:
    """A missing key has the usual window, null has none; Qwen2 has windows from some block on, where asked for."""

    def seen(given: Mapping[str, Any]) -> list[int]:
        work = model(saved(tmp_path, given), context=8192)
        return [layer.n for layer in work.layers if ".scores" in layer.name]  # type: ignore[attr-defined]

    plain = {key: each for key, each in small("mistral_7b").items() if key != "sliding_window"}
    assert seen(plain) == [4096, 4096]
    assert seen(plain | {"sliding_window": None}) == [8192, 8192]
    assert seen(plain | {"sliding_window": 100}) == [100, 100]
    later = small("qwen2_5_0_5b", use_sliding_window=True, max_window_layers=1)
    assert seen(later) == [8192, 5]
    assert seen({key: each for key, each in later.items() if key != "sliding_window"}) == [8192, 4096]
    assert seen(later | {"use_sliding_window": False}) == [8192, 8192]


def test_blocks_have_experts_where_the_config_says(tmp_path: Path) -> None:
    """Every few blocks, and not where a list says so."""

    def mixed(**changes: Any) -> list[bool]:
        given = small("qwen1_5_moe_a2_7b", num_hidden_layers=6, **changes)
        names = [each for each in model(saved(tmp_path, given), context=8).inputs() if "feed_forward_norm" in each]
        reads = model(saved(tmp_path, given), context=8).inputs().values()
        routed = {each for sources in reads for each in sources if "odds" in each}
        assert len(names) == 6
        return [each.replace("feed_forward_norm", "odds") in routed for each in names]

    assert mixed() == [True] * 6
    assert mixed(decoder_sparse_step=2) == [False, True] * 3
    assert mixed(decoder_sparse_step=2, mlp_only_layers=[1, 4]) == [False, False, False, True, False, True]
    assert mixed(mlp_only_layers=[*range(6)]) == [False] * 6


def test_a_share_of_each_token_scales_its_shared_expert(tmp_path: Path) -> None:
    reads = model(saved(tmp_path, small("qwen1_5_moe_a2_7b")), "decode", 2, context=8).inputs()
    assert reads["shared_weight_1"] == ("feed_forward_norm_1",)
    assert reads["shared_weighed_1"] == ("shared_down_1", "shared_share_1")
    assert reads["experts_sum_1"] == ("shared_weighed_1", "experts_1.sum")


def test_parallel_parts_read_one_norm_or_two(tmp_path: Path) -> None:
    for name, norm in (("falcon_7b", "attention_norm_1"), ("falcon_40b", "feed_forward_norm_1")):
        reads = model(saved(tmp_path, small(name)), "decode", 2, context=8).inputs()
        assert reads["feed_forward_up_1"] == (norm,)
        assert reads["query_key_value_1"] == ("attention_norm_1",)
        assert reads[norm] == ("embedding",)
    reads = model(saved(tmp_path, small("pythia_6_9b", use_parallel_residual=False)), context=8).inputs()
    assert reads["feed_forward_norm_1"] == ("attention_sum_1",)


def test_what_turns_stands_among_the_parameters_of_the_rope(tmp_path: Path) -> None:
    """Newer files have it there: once, or for each kind of blocks."""
    plain = small("phi_2", rope_parameters={"rope_theta": 2e4, "partial_rotary_factor": 0.25, "rope_type": "default"})
    del plain["partial_rotary_factor"]
    found = described(saved(tmp_path, plain)).data["sizes"]
    assert found["turned"] == 2
    kinds = {"full_attention": {"rope_theta": 3e6}, "sliding_attention": {"rope_theta": 3e3, "rope_type": "linear"}}
    given = small("gemma3_1b", rope_parameters=kinds)
    for key in ("rope_theta", "rope_local_base_freq"):
        given.pop(key, None)
    work = model(saved(tmp_path, given), context=8)
    bases = [layer.base for layer in work.layers if "query_turned" in layer.name]  # type: ignore[attr-defined]
    assert bases == [3e3, 3e6, 3e3, 3e6, 3e3]
    assert "rope_parameters turns queries and keys by other angles" in told(tmp_path, given)
    kinds["full_attention"]["rope_theta"] = -1.0
    with pytest.raises(InputError, match=r"rope_parameters.full_attention.rope_theta: -1.0 is no number above 0"):
        described(saved(tmp_path, {**given, "rope_parameters": kinds}))


def test_gemma_3_has_five_blocks_with_a_window_and_one_without() -> None:
    work = model(CONFIGS / "gemma3_1b.json", context=2048)
    seen = [layer.n for layer in work.layers if ".scores" in layer.name]  # type: ignore[attr-defined]
    assert seen == [512 if at % 6 != 5 else 2048 for at in range(26)]
    bases = [layer.base for layer in work.layers if ".query_turned" in layer.name or "query_turned" in layer.name]  # type: ignore[attr-defined]
    assert bases == [10_000 if at % 6 != 5 else 1_000_000 for at in range(26)]


def test_the_cache_of_latent_attention_is_a_vector_of_each_token() -> None:
    """576 numbers of a token and block, whatever the heads."""
    for context in (512, 1024):
        work = model(CONFIGS / "deepseek_v3.json", context=context, dense_layers=1, mixed_layers=1)
        caches = {source for sources in work.sources().values() for source in sources if source.cache}
        assert len({source.names for source in caches}) == 2
        assert {source.cache for source in caches} == {576 * context}
    shares = [layer.text for layer in work.layers if "dense_attention_1." in layer.name]
    assert shares == ["128x576>1024", "128x1024", "128x1024>512"]


@pytest.mark.parametrize("name", NAMES)
def test_hbm_holds_a_key_and_a_value_of_each_token_and_head(name: str) -> None:
    """Once each, also where one product makes both; of latent attention a vector of each token."""
    given, depth = config(name), 26 if name == "gemma3_1b" else 2
    heads = given.get("n_head", given.get("num_attention_heads"))
    head = given.get("head_dim", given.get("n_embd", given.get("hidden_size")) // heads)
    shared = {"falcon_7b": 1, "falcon_40b": 8}.get(name, given.get("num_key_value_heads", heads))
    numbers = 576 if name.startswith("deepseek") else 2 * shared * head
    kinds = {"dense_layers": 1, "mixed_layers": 1}
    depths = {"deepseek_v2_lite": kinds, "deepseek_v3": kinds, "gemma2_9b": {"pairs": 1}, "gemma3_1b": {}}
    work = model(CONFIGS / f"{name}.json", "decode", 4, context=1024, **depths.get(name, {"layers": 2}))
    assert hbm_need(work, load_hardware("tpu_v6e")).caches == 4 * 1024 * depth * numbers * 2


# ---- what is told, and what is refused


def test_the_guide_names_every_model_type_and_counts_the_models() -> None:
    page = (Path(__file__).parents[2] / "docs" / "your_model.md").read_text()
    assert [each for each in MODEL_TYPES if f"`{each}`" not in page] == []
    assert f"of {len(COUNTS)} models against" in page
    tested = {config(name)["model_type"] for name in NAMES}
    # DeepSeek-V3 by another name.
    assert {*MODEL_TYPES} - tested == {"kimi_k2"}


def told(folder: Path, given: Mapping[str, Any]) -> str:
    return notes(described(saved(folder, given)))


def test_what_changes_no_layer_is_told(tmp_path: Path) -> None:
    plain = config("llama3_8b")
    assert told(tmp_path, plain) == "8,030,261,248 parameters"
    more = plain | {"rope_scaling": {"factor": 8.0}, "quantization_config": {"bits": 4}, "mystery": 7, "odd_size": None}
    more |= {"architectures": ["LlamaForSequenceClassification"], "attention_dropout": 0.1}
    del more["num_key_value_heads"]
    text = told(tmp_path, more)
    assert "keys left out, and what their model type has then: num_key_value_heads 32" in text
    assert "rope_scaling turns queries and keys by other angles" in text
    assert "quantization_config is not read: --weights int8" in text
    assert "architectures LlamaForSequenceClassification" in text
    assert "keys that are not read: mystery" in text
    assert "dropout" not in text
    assert "experts are chosen among all" in told(tmp_path, config("deepseek_v3"))


def test_a_model_of_words_and_pictures_is_read_by_its_words(tmp_path: Path) -> None:
    words = {key: each for key, each in config("gemma3_1b").items() if key not in ("num_key_value_heads", "vocab_size")}
    whole = {"model_type": "gemma3", "text_config": words, "vision_config": {"hidden_size": 1152}}
    text = told(tmp_path, whole)
    assert "words alone are read" in text
    assert "num_key_value_heads 4, vocab_size 262,208" in text
    # Any other model of words within one of pictures, too; what holds for both stands beside them.
    llama = config("llama3_2_1b")
    del llama["tie_word_embeddings"]
    more = {"model_type": "llava", "text_config": llama, "tie_word_embeddings": True}
    assert told(tmp_path, more).startswith("1,235,814,400 parameters")
    for wrong, says in (
        ({"model_type": "llama4", "text_config": {"model_type": "llama4_text"}}, 'text_config.model_type: "llama4_t'),
        ({"model_type": "llava", "text_config": {"hidden_size": 8}}, "text_config.model_type: required key is missing"),
        ({"model_type": "llava", "text_config": [8]}, "text_config: \\[8\\] is no mapping"),
        ({"model_type": "gemma3"}, "text_config: an empty value is no mapping"),
    ):
        with pytest.raises(InputError, match=says):
            described(saved(tmp_path, wrong))
    bad = saved(tmp_path, {**whole, "text_config": {**words, "hidden_size": "wide"}})
    with pytest.raises(InputError, match=r"config.json:\d+: text_config.hidden_size: \"wide\" is not a number"):
        described(bad)


BAD = [
    ("llama3_8b", {"num_attention_heads": None}, "num_attention_heads: required key is missing"),
    ("llama3_8b", {"model_type": "lama"}, '"lama" is not known here; did you mean llama? allowed: llama, mistral'),
    ("llama3_8b", {"model_type": ["llama"]}, "model_type: "),
    ("llama3_8b", {"num_key_value_heads": 5}, "num_attention_heads: 32 is no multiple of num_key_value_heads, 5"),
    ("llama3_8b", {"hidden_size": 4100}, "hidden_size: 4100 is no multiple of num_attention_heads, 32"),
    ("llama3_8b", {"hidden_size": 32 * 65}, "hidden_size: 65 elements of a head turn by the position, in pairs"),
    ("llama3_8b", {"hidden_act": "mish"}, '"mish" is not known here; did you mean swish? allowed: silu'),
    ("llama3_8b", {"sliding_window": 4096}, "sliding_window: not known of this model type, and layers"),
    ("llama3_8b", {"residual_multiplier": 0.2}, "residual_multiplier: not known of this model type"),
    ("llama3_8b", {"vocab_size": "128k"}, 'vocab_size: "128k" is not a number'),
    ("llama3_8b", {"rms_norm_eps": -1}, "rms_norm_eps: -1 is no number above 0"),
    ("llama3_8b", {"num_hidden_layers": 10**6}, "num_hidden_layers: 1000000 is out of range"),
    ("llama3_8b", {"attention_bias": "yes"}, 'attention_bias: "yes" is no truth value'),
    ("mistral_7b", {"num_key_value_heads": None}, "num_key_value_heads: required key is missing"),
    ("mixtral_8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is out of range; write a whole number, 1"),
    ("mixtral_8x7b", {"hidden_act": "relu"}, "hidden_act: \"relu\" is not known here: experts gate by silu"),
    ("qwen3_8b", {"layer_types": ["full_attention"]}, "layer_types: [\"full_attention\"] names no 36 layers"),
    ("qwen3_30b_a3b", {"num_experts": None}, "num_experts: required key is missing"),
    ("qwen3_30b_a3b", {"num_experts": 4}, "num_experts_per_tok: 8 is above num_experts, 4; write 4 at most"),
    ("qwen3_30b_a3b", {"decoder_sparse_step": 0}, "decoder_sparse_step: 0 is out of range"),
    ("gpt2_small", {"n_head": 7}, "n_embd: 768 is no multiple of n_head, 7"),
    ("gpt2_small", {"add_cross_attention": True}, "add_cross_attention: true is not known here"),
    ("phi_2", {"qk_layernorm": True}, "qk_layernorm: true is not known here"),
    ("phi_2", {"partial_rotary_factor": 1.5}, "partial_rotary_factor: 1.5 is no number above 0 up to 1"),
    ("deepseek_v3", {"topk_method": "greedy"}, 'topk_method: "greedy" is not known here'),
    ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank: required key is missing"),
    ("gemma3_1b", {"use_bidirectional_attention": True}, "use_bidirectional_attention: true is not known here"),
    ("llama3_8b", {"num_attention_heads": 32.5}, "num_attention_heads: 32.5 is not a whole number"),
    ("llama3_8b", {"num_attention_heads": "32"}, 'num_attention_heads: "32" is text because it is in quotes; write 32'),
    ("llama3_8b", {"num_local_experts": 8}, "num_local_experts: not known of this model type, and layers may depend"),
    ("llama3_8b", {"rope_scaling": "yarn"}, 'rope_scaling: "yarn" is no mapping'),
    ("llama3_8b", {"quantization_config": "fp8"}, 'quantization_config: "fp8" is no mapping'),
    ("qwen1_5_moe_a2_7b", {"num_experts_per_tok": None}, "num_experts_per_tok: required key is missing"),
    ("qwen1_5_moe_a2_7b", {"moe_intermediate_size": None}, "moe_intermediate_size: required key is missing"),
    ("qwen1_5_moe_a2_7b", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size: required key"),
    ("qwen1_5_moe_a2_7b", {"mlp_only_layers": [1.5]}, "mlp_only_layers: no list of numbers of layers"),
    ("stablelm2_1_6b", {"use_parallel_residual": True}, "use_parallel_residual: true is not known here"),
    ("starcoder2_3b", {"norm_type": "rms_norm"}, 'norm_type: "rms_norm" is not known here'),
    ("falcon_7b", {"alibi": True}, "alibi: true is not known here"),
    ("falcon_40b", {"num_kv_heads": 7}, "num_attention_heads: 128 is no multiple of num_kv_heads, 7"),
    ("pythia_6_9b", {"rotary_pct": 2.0}, "rotary_pct: 2.0 is no number above 0 up to 1"),
    ("granite_3_8b", {"residual_multiplier": 0.2, "moe_layers": 3}, "moe_layers: not known of this model type"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "says"), BAD, ids=[f"{name}-{next(iter(each))}" for name, each, _ in BAD])
def test_what_is_not_understood_is_refused_by_its_name(
    tmp_path: Path, name: str, changes: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(InputError) as caught:
        described(saved(tmp_path, config(name, **changes)))
    assert says in str(caught.value)
    (problem,) = caught.value.problems
    key = str(problem.where).rpartition(" ")[2]
    assert f'"{key}"' in (tmp_path / "config.json").read_text().splitlines()[problem.line - 1]


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(NAMES), data=st.data())
def test_no_value_of_a_key_makes_more_than_a_message(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    given = small(name)
    key = data.draw(st.sampled_from(sorted(given)))
    odd = st.sampled_from([None, True, False, 0, -1, 3, 2.5, 10**12, "x", [], [1], {}, {"a": 1}, "1e-05"])
    path = saved(tmp_path_factory.getbasetemp(), {**given, key: data.draw(odd)}, "odd")
    try:
        found = str([model(path, context=8).layers])
    except InputError as error:
        found = str(error)
    assert "odd.json" in found or "embedding" in found


# ---- on the command line


def test_a_config_is_run_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, small("llama3_8b", _name_or_path="makers/Tiny-Llama"))
    on = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--dim", "context=8")
    made = tpusim("run", "config.json", "--phase", "decode", "--dim", "layers=1", "--no-check", "--batch", "1", *on)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("Tiny-Llama, batch 1, context 8, tokens 1,")
    assert "Note: 8,032 parameters" in made.stderr
    imported = tpusim("import", "config.json", "-o", "made.yaml", "--dim", "layers=1")
    assert imported.exit_code == 0, imported.output
    assert "made.yaml: " in imported.stderr
    again = tpusim("run", "made.yaml", "--phase", "decode", "--no-check", "--batch", "1", *on)
    assert [line for line in again.stdout.splitlines() if line.startswith("Total")] == [
        line for line in made.stdout.splitlines() if line.startswith("Total")
    ]


def test_a_prompt_and_the_tokens_behind_it_are_timed(tmp_path: Path) -> None:
    path = saved(tmp_path, small("gpt2_small"))
    on = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--batch", "2", "--json", "-")
    machine = load_hardware("tiny_4x4", ESTIMATE)
    # What the command lowers is lowered once for what it is held against.
    with lowered_once():
        done = tpusim("run", str(path), "--tokens", "3", "--prompt", "8", *on)
        assert done.exit_code == 0, done.output
        made = json.loads(done.stdout)
        prompt, *tokens = (
            simulate(model(path, phase, 2, context=context), machine, check=False).total.cycles
            for phase, context in (("prefill", 8), ("decode", 9), ("decode", 10))
        )
    assert (made["prompt"]["tokens"], made["prompt"]["cycles"]) == (8, prompt)
    assert made["first_token_seconds"] == pytest.approx(prompt / made["clock_hz"])
    assert [each["context"] for each in made["tokens"]] == [9, 10]
    assert [each["cycles"] for each in made["tokens"]] == tokens
    assert "parameters" in done.stderr


def test_a_bad_config_is_one_message_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, small("llama3_8b", num_attention_heads=None))
    for command in (("run", "config.json"), ("import", "config.json", "-o", "made.yaml")):
        done = tpusim(*command)
        assert done.exit_code == 2
        assert "num_attention_heads: required key is missing" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not Path("made.yaml").exists()


def test_other_files_in_json_are_what_they_are(tmp_path: Path) -> None:
    net = saved(
        tmp_path, {"name": "net", "layers": [{"name": "fc", "op": "gemm", "m": "batch", "n": 4, "k": 8}]}, "net"
    )
    assert [layer.text for layer in workload_of(open_workload(net), 3).layers] == ["3x8>4"]
    more = {"name": "net", "chips": 2, "weights": "int8", "sizes": {"wide": 4}, "ops": "array"}
    net = saved(tmp_path, {**more, "layers": [{"name": "fc", "op": "gemm", "m": "batch", "n": "wide", "k": 8}]}, "more")
    (tmp_path / "made.yaml").write_text(yaml_of(described(net)))
    assert workload_of(open_workload(tmp_path / "made.yaml"), 3) == workload_of(open_workload(net), 3)
    result = saved(tmp_path, {"tpusim": "1", "total": {}}, "run")
    with pytest.raises(InputError, match="is the result of a run"):
        open_workload(result)
    (tmp_path / "half.json").write_text('{"model_type": "llama", [')
    with pytest.raises(InputError, match=r"half\.json:\d: not valid JSON"):
        open_workload(tmp_path / "half.json")
    with pytest.raises(InputError, match=r"model_type is missing: this is no config\.json"):
        open_workload(saved(tmp_path, {"a": 1}, "other"))
    text = json.dumps(small("llama3_8b"), indent="\t")
    (tmp_path / "tabs.json").write_text(text)
    assert parameters_told(open_workload(tmp_path / "tabs.json")) > 0
    (tmp_path / "llama.yaml").write_text(text.replace("\t", " "))
    with pytest.raises(InputError, match=r"the config of a language model; call the file llama\.json"):
        open_workload(tmp_path / "llama.yaml")
    with pytest.raises(InputError, match="is the config of a language model, a network"):
        load_hardware(tmp_path / "tabs.json")
