"""Functions of JAX on bytes, and those that routers of experts are made of: their values are JAX's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

jax = pytest.importorskip("jax", reason="a function of JAX needs the extra jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tpusim import from_jax, load_hardware, simulate  # noqa: E402
from tpusim.base.errors import InputError  # noqa: E402
from tpusim.cli.app import app  # noqa: E402
from tpusim.flow.values import journey  # noqa: E402
from tpusim.network.formats import ModelOptions  # noqa: E402
from tpusim.network.workload_file import open_workload  # noqa: E402


def signed(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-128, 128, shape).astype(np.int8)


def words(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def whole(a: Any, b: Any) -> Any:
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


def scaled(a: Any, b: Any, by: Any) -> Any:
    return whole(a, b).astype(jnp.float32) * by


def many(a: Any, b: Any) -> Any:
    return jnp.einsum("bij,bjk->bik", a, b, preferred_element_type=jnp.int32)


def convolved(x: Any, w: Any) -> Any:
    return lax.conv(x, w, (1, 1), "SAME", preferred_element_type=jnp.int32)


def ragged_by(*rows: int) -> Callable[..., Any]:
    return lambda x, w: lax.ragged_dot(x, w, jnp.array(rows, jnp.int32))


@pytest.mark.parametrize("engine", ["event", "register"])
@pytest.mark.parametrize(
    ("function", "arguments", "layers"),
    [
        (whole, (signed(8, 300), signed(300, 4)), ["gemm"]), (whole, (words(8, 16), signed(16, 4)), ["gemm"]),
        (many, (signed(2, 8, 16), signed(2, 16, 4)), ["gemm"]),
        (convolved, (signed(1, 3, 8, 8), signed(4, 3, 3, 3)), ["conv2d"]),
        (scaled, (signed(8, 16), signed(16, 4), reals(4)), ["gemm", "mul"]),
        (lambda x, w: lax.top_k(x @ w, 2), (reals(12, 8), reals(8, 4)), ["gemm"]),
        (lax.ragged_dot, (reals(12, 8), reals(3, 8, 5), np.array([5, 3, 4], np.int32)), ["gemm"] * 3),
        (ragged_by(5, 0, 4), (reals(12, 8), reals(3, 8, 5)), ["gemm"] * 2),
    ],
)  # fmt: skip
def test_values_are_those_of_jax(
    function: Callable[..., Any], arguments: tuple[Any, ...], layers: list[str], engine: str
) -> None:
    work, machine = from_jax(function, *arguments), load_hardware("tiny_4x4", ["mapping.search=estimate"])
    assert [layer.op for layer in work.layers] == layers
    values = journey(work, machine)
    assert simulate(work, machine, dtype="f32", engine=engine, journey=values).correct
    expected = jax.tree_util.tree_leaves(function(*arguments))
    for made, each in zip(values.outputs().values(), expected, strict=True):
        assert made.dtype == each.dtype
        np.testing.assert_allclose(made, each, rtol=1e-5, atol=1e-4)


def four_bits(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(-8, 8, shape), jnp.int4)


def rounded(kind: Any) -> Callable[..., Any]:
    return lambda x, w: whole(jnp.round(x).astype(kind), w)


@pytest.mark.parametrize("engine", ["event", "register"])
@pytest.mark.parametrize(
    ("function", "arguments", "layers"),
    [
        (whole, (four_bits(8, 30), four_bits(30, 4)), ["gemm"]),
        (whole, (signed(8, 16), four_bits(16, 4)), ["gemm"]),
        (scaled, (signed(8, 16), four_bits(16, 4), reals(4)), ["gemm", "mul"]),
        (lambda x, w, s: x @ (w.astype(jnp.float32) * s), (reals(3, 16), four_bits(16, 4), reals(4)), ["mul", "gemm"]),
        (rounded(jnp.int4), (reals(3, 16), four_bits(16, 4)), ["gemm"]),
        (rounded(jnp.int8), (reals(3, 16), four_bits(16, 4)), ["gemm"]),
    ],
)  # fmt: skip
def test_numbers_of_four_bits_are_multiplied_as_bytes(
    function: Callable[..., Any], arguments: tuple[Any, ...], layers: list[str], engine: str
) -> None:
    """JAX on a CPU multiplies no two values of four bits; as bytes they are the same."""
    work, machine = from_jax(function, *arguments), load_hardware("tiny_4x4", ["mapping.search=estimate"])
    assert [layer.op for layer in work.layers] == layers
    values = journey(work, machine)
    assert simulate(work, machine, dtype="f32", engine=engine, journey=values).correct
    as_bytes = [each.astype(jnp.int8) if each.dtype == jnp.int4 else each for each in arguments]
    expected = (rounded(jnp.int8) if "rounded" in function.__qualname__ else function)(*as_bytes)
    (made,) = values.outputs().values()
    assert made.dtype == expected.dtype
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-4)


def test_shapes_may_be_of_bytes_and_of_four_bits(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_text(
        "import jax.numpy as jnp\ndef whole(a, b): return jnp.dot(a, b, preferred_element_type=jnp.int32)\n"
    )
    path = f"{tmp_path / 'bytes.py'}:whole"
    for kinds in (("i8", "i8"), ("i8", "i4"), ("i4", "i4")):
        shapes = f"6x8:{kinds[0]},8x4:{kinds[1]}"
        work = open_workload(Path(path), ModelOptions(shapes=shapes))
        assert [each["op"] for each in work.data["layers"]] == ["gemm"]
        saved = tmp_path / f"{'_'.join(kinds)}.npz"
        asked = "run", path, "--shapes", shapes, "--save-outputs", str(saved), "--hardware", "tiny_4x4"
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.output
        with np.load(saved) as held:
            assert held["output"].dtype == np.int32
    done = CliRunner().invoke(app, ["run", path, "--shapes", "6x8:i5,8x4:i8"])
    assert done.exit_code == 2
    assert "f32, bf16, f16, i32, i8, i4, bool" in " ".join(done.stderr.split())


def test_what_cannot_be_a_product_of_bytes_or_of_groups_says_why() -> None:
    with pytest.raises(InputError, match=r"its sums of bytes are int8; ask for preferred_element_type=jnp\.int32"):
        from_jax(lambda a, b: a @ b, signed(8, 16), signed(16, 4))
    with pytest.raises(InputError, match="how many rows each product has follows from values; give whole numbers"):
        from_jax(lax.ragged_dot, reals(12, 8), reals(3, 8, 5), jax.ShapeDtypeStruct((3,), jnp.int32))


ROUTED = """
import jax.numpy as jnp
from jax import lax

def routed(x, w):
    numbers, _ = lax.top_k(jnp.reshape(x @ w, (4, 12)), 2)
    return jnp.round(numbers), numbers < 1
"""


def test_primitives_that_take_no_time_say_why(tmp_path: Path) -> None:
    (tmp_path / "router.py").write_text(ROUTED)
    (note,) = (
        each
        for each in open_workload(tmp_path / "router.py:routed", ModelOptions(shapes="12x8,8x4")).notes
        if each.startswith("not timed: ")
    )
    assert "lax.top_k 1 (elements are sorted, and no unit here sorts)" in note
    assert "lax.round 1 (it rounds, and no unit here rounds)" in note
    assert "lax.lt 1 (it makes truth values, and layers make numbers)" in note
    assert "reshape" not in note
    with pytest.raises(InputError, match=r"run as a layer: lax.top_k 1 \(elements are sorted"):
        from_jax(lambda x: lax.top_k(x, 2), reals(12, 8))
