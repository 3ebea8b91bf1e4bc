"""Weights and caches of fewer bytes, as a workload file or a run asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tpusim import Workload, load_hardware, load_workload, simulate, training_step
from tpusim.base.errors import InputError
from tpusim.flow.hbm_need import UNPADDED, hbm_need
from tpusim.flow.numbers import numbers_of
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.array_op import Gemm, stored_bits
from tpusim.network.workload_file import open_workload, workload_of

FILE = """
name: small
{keys}
sizes: {{context: 8}}
layers:
  - {{name: query, op: gemm, m: batch, n: 16, k: 16}}
  - {{name: key, op: gemm, inputs: [input], m: batch, n: 16, k: 16, stored: int4}}
  - {{name: keys, op: cache, inputs: [key], channels: 16, tokens: context}}
  - {{name: attention, op: attention, inputs: [query, keys, keys], heads: 1, head: 16, queries: 1, keys: context}}
  - {{name: turned, op: view, inputs: [query], channels: 1, images: 16}}
  - {{name: again, op: gemm, inputs: [attention, turned], m: batch, n: 1, k: 16}}
"""


def small(tmp_path: Path, keys: str = "", **asked: str) -> Workload:
    path = tmp_path / "small.yaml"
    path.write_text(FILE.format(keys=keys))
    return workload_of(open_workload(path, ModelOptions(**asked)), 1)  # type: ignore[arg-type]


def stored(work: Workload) -> dict[str, str]:
    return {layer.name: layer.stored for layer in products(work)}


def products(work: Workload) -> Iterator[Gemm]:
    return (layer for layer in work.layers if isinstance(layer, Gemm))


def test_weights_are_what_no_layer_makes(tmp_path: Path) -> None:
    """A layer's own word goes first; caches have a word of their own; what a layer makes is as it was made."""
    names = "query", "key", "attention.scores", "attention.values", "again"
    plain = "computed", "int4", "computed", "computed", "computed"
    assert stored(small(tmp_path)) == dict(zip(names, plain, strict=True))
    narrow = small(tmp_path, "weights: int8\ncaches: int4")
    wanted = dict(zip(names, ("int8", "int4", "int4", "int4", "computed"), strict=True))
    assert stored(narrow) == wanted
    assert tuple(narrow.narrow) == names[:-1]
    assert stored(small(tmp_path, weights="int8", caches="int4")) == wanted
    assert stored(small(tmp_path, "weights: int8", weights="computed")) == stored(small(tmp_path))


def test_a_word_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'weights: "int3" is not allowed.*write computed or int8 or int4'):
        small(tmp_path, "weights: int3")
    with pytest.raises(InputError, match=r"--caches int2.*computed or int8 or int4"):
        small(tmp_path, caches="int2")


def test_hbm_holds_fewer_bytes(tmp_path: Path) -> None:
    """Half of them for int8 beside elements of two bytes, a quarter for int4, all where elements have one byte."""
    machine = load_hardware("tpu_v6e")
    works = [small(tmp_path, weights=each, caches=each) for each in ("computed", "int8")]
    plain, narrow = (hbm_need(work, machine, UNPADDED) for work in works)
    assert (plain.weights, narrow.weights) == (2 * 16 * 16 + 16 * 16 // 2, 16 * 16 + 16 * 16 // 2)
    assert (plain.caches, narrow.caches) == (2 * 16 * 8, 16 * 8)
    assert [stored_bits(each, 2) for each in ("computed", "int8", "int4")] == [16, 8, 4]
    assert (stored_bits("int8", 1), UNPADDED.bytes((9, 1, 1, 1), 4)) == (8, 5)


def test_a_model_takes_half_of_its_bytes() -> None:
    machine = load_hardware("tpu_v6e")
    works = [
        workload_of(open_workload("llama3_8b", ModelOptions(phase="decode", weights=each, caches=each)), 1)
        for each in ("computed", "int8", "int4")
    ]
    needs = [hbm_need(work, machine) for work in works]
    cached = {layer for layer, sources in works[0].sources().items() if any(each.cache for each in sources)}
    weights = sum(layer.weights(1) for layer in products(works[0]) if layer.name not in cached)
    # Embeddings are no product, and scales of norms are no second factor.
    assert [needs[0].weights - each.weights for each in needs] == [0, weights, weights * 3 // 2]
    assert [each.caches / needs[0].caches for each in needs] == [1, 1 / 2, 1 / 4]


@pytest.mark.parametrize("dtype", ["integers", "bf16", "f32", "int8"])
@pytest.mark.parametrize("stored", ["int8", "int4"])
def test_values_are_whole_numbers_of_the_type(stored: str, dtype: str) -> None:
    """So that every output is checked, whatever the other factor is."""
    layer = Gemm("fc", 3, 40, 50, stored=stored)  # type: ignore[arg-type]
    drawn = numbers_of(dtype, "any").operands(layer, 1, 0)["filter"]
    most = 1 << (7 if stored == "int8" else 3)
    assert np.array_equal(drawn, np.rint(drawn))
    assert -most <= drawn.min() < 0 < drawn.max() < most
    result = simulate(Workload("one", 1, [layer]), load_hardware("tpu_v5e"), dtype=dtype)
    assert result.correct


def test_small_numbers_do_not_depend_on_how_they_are_stored() -> None:
    plain, narrow = (numbers_of("integers", "any").operands(Gemm("fc", 3, 4, 5, stored=each), 1, 0)
                     for each in ("computed", "int4"))  # type: ignore[arg-type]  # fmt: skip
    assert all(np.array_equal(plain[name], narrow[name]) for name in plain)


def test_no_step_trains_narrow_weights() -> None:
    network = load_workload("alexnet", batch=2, ops="all").with_stored("int8", "computed")
    with pytest.raises(InputError, match=r"weights by less than a step.*fc6.*store all as computed"):
        training_step(network)


def test_a_gpu_refuses_them() -> None:
    with pytest.raises(InputError, match="a GPU widens no int8 weights yet"):
        simulate(Workload("one", 1, [Gemm("fc", 16, 32, 64, stored="int8")]), load_hardware("v100"), check=False)
