"""Functions of JAX: what comes out of them on a machine is what JAX itself computes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.invoked import tpusim
from tests.typed import Page, Step, shows
from tpusim import from_jax, journey, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.reference.nodes.primitives import NODES

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tests.network.jax_functions import (  # noqa: E402
    CNN,
    FUNCTIONS,
    IMAGES,
    LABELS,
    cnn_loss,
    conv,
    mlp,
    reals,
    resnet50,
    resnet50_params,
)  # fmt: skip
from tpusim.network.formats.jax_function import NOT_TIMED  # noqa: E402
from tpusim.network.formats.jax_function.layers import LAYERS, OF_THE_ARRAY  # noqa: E402


def plain(name: str) -> str:
    """The name of a layer without its source line."""
    return re.sub(r"@[^:]+:\d+", "", name)


def agrees(
    function: Callable[..., Any], *arguments: Any, machine: str = "tpu_v2", changes: Sequence[str] = (),
    engine: str = "event", fuses: bool = False,
) -> list[str]:  # fmt: skip
    """Run a function, and compare all its outputs with those of JAX; return the ops of its layers."""
    hardware = load_hardware(machine, [*changes, *(["sequencer.fusion=results"] if fuses else [])])
    work = from_jax(function, *arguments)
    values = journey(work, hardware)
    result = simulate(work, hardware, dtype="f32", journey=values, engine=engine)
    assert result.correct
    wanted = jax.tree_util.tree_leaves(function(*jax.tree.map(jnp.asarray, arguments)))
    outputs = values.outputs()
    assert len(outputs) == len(wanted) > 0
    for (name, each), expected in zip(outputs.items(), map(np.asarray, wanted), strict=True):
        assert each.shape == expected.shape, name
        # Sums of another order: as far apart as their largest term allows.
        np.testing.assert_allclose(each, expected, rtol=2e-4, atol=2e-5 * max(1.0, abs(expected).max()), err_msg=name)
    return [layer.core.op for layer in values.work.layers]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_computes_what_jax_computes(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    agrees(function, *arguments)


@pytest.mark.parametrize("name", ["mlp", "cnn", "depthwise", "vision"])
def test_values_are_the_same_where_results_are_fused(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    alone, fused = (agrees(function, *arguments, fuses=each) for each in (False, True))
    assert len(fused) < len(alone)


def test_both_engines_agree_on_a_function() -> None:
    def small(x: Any, weights: Any) -> Any:
        return jax.grad(lambda w: jnp.sum(jax.nn.relu(lax.conv(x, w, (2, 2), "SAME")) ** 2))(weights)

    agrees(small, reals(2, 3, 5, 5), reals(4, 3, 3, 3), machine="tiny_4x4", engine="both")


# ---- convolutions in all their dimension numbers

ORDERS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CWNH", "IOWH", "HNCW")]
CONVOLUTIONS = {
    "plain": {"padding": "SAME"},
    "strided": {"window_strides": (2, 1), "padding": ((0, 1), (2, 0))},
    "pixels": {"window_strides": (2, 2), "padding": "VALID", "kernel": (1, 1)},
    "with gaps": {"padding": ((2, 1), (3, 3)), "rhs_dilation": (2, 3)},
    "spread": {"padding": ((1, 2), (0, 1)), "lhs_dilation": (2, 3)},
    "spread, and cut off unevenly": {"padding": ((2, -1), (4, 0)), "lhs_dilation": (2, 1)},
    "spread, and padded beyond its kernel": {"padding": ((4, 0), (1, 6)), "lhs_dilation": (2, 3)},
    "cut off": {"padding": ((-1, 2), (0, -2))},
    "grouped": {"padding": "SAME", "feature_group_count": 2},
    "depthwise": {"padding": "SAME", "feature_group_count": 4, "window_strides": (2, 2)},
    "by groups of images": {"padding": "SAME", "batch_group_count": 2},
    "whole": {"padding": "VALID", "kernel": (7, 8)},
    "whole, grouped": {"padding": ((1, 0), (0, 1)), "kernel": (7, 8), "feature_group_count": 2},
    "whole, by groups of images": {"padding": ((1, 0), (0, 1)), "kernel": (7, 8), "batch_group_count": 2},
    "whole, with images alone": {"padding": ((1, 0), (0, 1)), "kernel": (7, 8), "batch_group_count": 4},
}


def convolution(how: str, orders: Sequence[str]) -> tuple[Callable[..., Any], Any, Any]:
    asked = {"window_strides": (1, 1), **CONVOLUTIONS[how]}
    rows, cols = asked.pop("kernel", (3, 2))
    groups = asked.get("feature_group_count", 1)
    sides = {"N": 4, "C": 4, "H": 7, "W": 8}, {"O": 4 if groups == 4 else 8, "I": 4 // groups, "H": rows, "W": cols}
    maps, weights = (reals(*(each[letter] for letter in order)) for each, order in zip(sides, orders, strict=False))

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, dimension_numbers=tuple(orders), **asked)

    return function, maps, weights


@pytest.mark.parametrize("orders", ORDERS, ids=" ".join)
@pytest.mark.parametrize("how", CONVOLUTIONS)
def test_a_convolution_of_any_kind(how: str, orders: Sequence[str]) -> None:
    ops = agrees(*convolution(how, orders))
    assert {*ops} == {"conv_transpose2d" if "spread" in how else "conv2d"}


# JAX 0.10.2 reads beyond its map there, on a CPU: padding of less than nothing at one end and more at the other.
@pytest.mark.parametrize("how", [each for each in CONVOLUTIONS if "beyond" not in each])
def test_the_gradients_of_a_convolution_of_any_kind(how: str) -> None:
    function, maps, weights = convolution(how, ORDERS[0])
    slopes = reals(*np.shape(function(maps, weights)))
    agrees(jax.grad(lambda x, w: jnp.sum(function(x, w) * slopes), (0, 1)), maps, weights)


@pytest.mark.parametrize(
    ("how", "ops"),
    [
        ("plain", ["conv2d_filter_gradient 7x8x4>8 3x2 p1x0x1x1", "conv2d_input_gradient 7x8x4>8 3x2 p1x0x1x1"]),
        (
            "pixels",
            ["conv2d_filter_gradient 7x8x4>8 1x1/2", "conv2d_input_gradient 4x4x4>8 1x1", "spread 4x4x4 > 7x8 /2"],
        ),
        ("grouped", ["conv2d 7x8x8>4 3x2 p1x1x1x0 g2", "conv2d_filter_gradient 7x8x4>8 3x2 p1x0x1x1 g2"]),
    ],
)
def test_the_gradients_of_a_convolution_are_layers_of_their_own(how: str, ops: Sequence[str]) -> None:
    """They are those of `training_step`, with the sizes of the convolution itself."""
    function, maps, weights = convolution(how, ORDERS[0])
    slopes = reals(*np.shape(function(maps, weights)))
    layers = from_jax(jax.grad(lambda x, w: jnp.sum(function(x, w) * slopes), (0, 1)), maps, weights).layers
    assert sorted(f"{layer.op} {layer.text}" for layer in layers if layer.op != "mul") == ops


def test_products_of_two_numbers_are_layers() -> None:
    """The array has no other work in a network that narrows to a single number."""
    one = reals(1, 1, 1, 1), reals(1, 1, 1, 1)
    assert agrees(jax.value_and_grad(lambda w, x: jnp.sum(conv(x, w) ** 2)), *one) == [
        "conv2d",
        "conv2d_filter_gradient",
    ]
    assert agrees(lambda x, w: x @ w, reals(1, 1), reals(1, 1)) == ["gemm"]


def test_what_is_computed_again_is_no_gradient() -> None:
    """Here a convolution of it reads weights that are computed again, and has as many channels as there are images."""
    scaled = jax.checkpoint(lambda x, w: jax.nn.relu(conv(jnp.tanh(x), w * 2)))
    maps, weights = reals(4, 6, 6, 4), reals(3, 3, 4, 4)
    ops = agrees(jax.grad(lambda w: jnp.sum(scaled(scaled(maps, w), w) ** 2)), weights)
    assert ops.count("conv2d_filter_gradient") == ops.count("conv2d") - 2 == 2


def test_gradients_over_other_images_than_those_of_the_batch() -> None:
    """Sums over them are no layer of a batch: a product for each tap, or a convolution whose images are channels."""
    maps = reals(4, 8, 8, 4), reals(6, 8, 8, 4)

    def sums(weights: Any, stride: int, groups: int) -> Any:
        made = (conv(each, weights, stride, "VALID", feature_group_count=groups) for each in maps)
        return sum(jnp.sum(each**2) for each in made)

    for kernel, *how in ((2, 1, 1), (2, 1, 2), (2, 1, 4), (4, 4, 1)):
        weights = reals(kernel, kernel, 4 // how[1], 4)
        ops = agrees(jax.grad(lambda w, how=how: sums(w, *how)), weights)
        assert "conv2d_filter_gradient" not in ops
        assert ("gemm" in ops) == (kernel == 2)


def test_a_convolution_over_one_axis() -> None:
    x, weights = reals(2, 9, 4), reals(3, 4, 6)

    def line(x: Any, weights: Any, **more: Any) -> Any:
        numbers = {"dimension_numbers": ("NWC", "WIO", "NWC"), **more}
        return lax.conv_general_dilated(x, weights, (2,) if not more else (1,), ((1, 0),), **numbers)

    assert agrees(line, x, weights) == ["conv1d"]
    assert agrees(lambda x, w: line(x, w, lhs_dilation=(2,)), x, weights) == ["conv_transpose2d"]


# ---- other primitives


@pytest.mark.parametrize(
    ("numbers", "shapes"),
    [
        (((1,), (0,)), ((3, 4), (4, 5))),
        (((0, 2), (2, 0)), ((3, 2, 4), (4, 5, 3))),
        (((), ()), ((3,), (4,))),
        (((1,), (1,), (0,), (2,)), ((3, 4, 2), (5, 4, 3))),
    ],
)
def test_a_product_over_any_axes(numbers: Any, shapes: Any) -> None:
    summed, shared = numbers[:2], numbers[2:] or ((), ())
    one, other = (reals(*shape) for shape in shapes)
    assert agrees(lambda x, y: lax.dot_general(x, y, (summed, shared)), one, other) == ["gemm"]


WINDOW = {"window_dimensions": (1, 3, 2, 1), "window_strides": (1, 2, 1, 1)}


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows_are_pooling(padding: str) -> None:
    x = reals(2, 7, 6, 3)

    def largest(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, padding=padding, **WINDOW)

    def sums(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, padding=padding, **WINDOW)

    assert agrees(lambda x: largest(x) + 1, x) == ["pool2d", "add"]
    assert agrees(lambda x: sums(x) / 6, x) == ["pool2d"]
    assert agrees(lambda x: sums(x) / sums(jnp.ones_like(x)), x) == ["pool2d"]
    assert agrees(jax.grad(lambda x: jnp.sum(largest(x * 2) ** 3)), x)[:3] == ["mul", "pool2d", "power"]


def test_one_layer_computes_functions_that_jax_writes_out() -> None:
    x = reals(4, 6)
    for function, ops in {
        jax.nn.softmax: ["softmax"], jax.nn.gelu: ["gelu"], jax.nn.silu: ["silu"], jax.nn.softplus: ["softplus"],
        jax.nn.relu: ["relu"], jax.nn.relu6: ["clip"], jnp.tanh: ["tanh"], jax.nn.sigmoid: ["sigmoid"],
    }.items():  # fmt: skip
        assert agrees(function, x) == ops
    assert agrees(lambda x: jax.nn.gelu(x, approximate=False), x) == ["gelu"]
    assert agrees(lambda x: jax.nn.softmax(x, axis=0), x) == ["softmax"]
    assert agrees(lambda x: jnp.mean(x, axis=-1, keepdims=True), x) == ["reduce_mean"]
    assert agrees(jax.vmap(jax.nn.softmax), reals(2, 4, 6)) == ["softmax"]
    # What is inside is wanted as well, so that it has to be written out.
    assert "softmax" not in agrees(jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) ** 2)), x)


MOVES = {
    "gather rows": lambda x: x[jnp.array([2, 0, 2])],
    "gather elements": lambda x: x[jnp.arange(3), jnp.array([1, 3, 0])],
    "gather beyond": lambda x: jnp.nan_to_num(jnp.take(x, jnp.array([1, 9, -1]), axis=0)),
    "gather clipped": lambda x: jnp.take(x, jnp.array([1, 9, -1]), axis=0, mode="clip"),
    "gather batches": lambda x: jax.vmap(lambda row, at: row[at])(x, jnp.array([1, 3, 0, 2])),
    "put": lambda x: x.at[jnp.array([0, 2])].set(7.0),
    "add twice": lambda x: x.at[jnp.array([1, 1, 9])].add(x[:3]),
    "rev": lambda x: x[::-1, ::-1],
    "steps": lambda x: x[::2, 1::3],
    "pad": lambda x: lax.pad(x, 1.5, ((1, -1, 2), (-2, 3, 0))),
    "dynamic": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[0]), 1), (2, 3)),
    "update": lambda x: lax.dynamic_update_slice(x, x[:2, :2], (jnp.argmax(x[0]), 1)),
    "concatenate": lambda x: jnp.concatenate([x, x * 2], axis=1),
    "cumsum": lambda x: jnp.cumsum(x, axis=1) + lax.cumsum(x, 0, reverse=True),
    "where": lambda x: jnp.where(x > 0, x, -1.0),
    "which": lambda x: x + jnp.argmin(x, axis=1)[:, None],
    "ends": lambda x: jnp.max(x, 1) - jnp.min(x, 1) + jnp.prod(x, 1),
    "rounded": lambda x: jnp.round(3 * x) + jnp.floor(x) - jnp.ceil(2 * x) + jnp.sign(x) + lax.round(x),
    "functions": lambda x: jnp.log1p(abs(x)) + jnp.expm1(x) + lax.rsqrt(1 + x * x) + jnp.sin(x) * jnp.cos(x) + x**-1,
    "powers": lambda x: x**4 + abs(x) ** 1.7 + jnp.cbrt(x) + jnp.exp2(x) + lax.erfc(x) + lax.erf(x),
    "truths": lambda x: ((x > 0) & (x < 1) | ~(x <= 2)).astype(jnp.float32) + jnp.isfinite(x) + (x != x),
    "whole": lambda x: ((x * 10).astype(jnp.int32) // 3 % 5).astype(jnp.float32),
    "clipped": lambda x: jnp.clip(x, -0.5, 0.5) + jnp.minimum(x, 0.25) + lax.clamp(-1.0, x, 1.0),
    "in bfloat16": lambda x: (x * 2).astype(jnp.bfloat16).astype(jnp.float32),
    "order": lambda x: lax.reshape(x, (5, 4), (1, 0)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_is_no_layer_has_the_values_of_jax(name: str) -> None:
    agrees(lambda x, weights: MOVES[name](x @ weights), reals(4, 6), reals(6, 5))


def test_conditions_that_are_known_are_decided() -> None:
    x = reals(3, 3)
    branches = lambda x: x @ x.T, lambda x: x * 2
    assert agrees(lambda x: lax.cond(True, *branches, x), x) == ["gemm"]
    assert agrees(lambda x: lax.switch(5, [*branches], x), x) == ["mul"]


def test_a_scan_backwards_and_one_without_inputs() -> None:
    x = reals(4, 3, 3)
    agrees(lambda x: lax.scan(lambda state, each: (state @ each, state), jnp.eye(3), x, reverse=True), x)
    assert agrees(lambda x: lax.fori_loop(0, 3, lambda _, state: state @ x[0], x[0]), x) == ["gemm"] * 3


def test_the_scopes_of_a_function_name_its_layers() -> None:
    names = [plain(layer.name) for layer in from_jax(*(FUNCTIONS["transformer by its weights"][0],),
                                              *FUNCTIONS["transformer by its weights"][1]).layers]  # fmt: skip
    assert {"attention.dot", "mlp.dot", "grad.attention.dot", "grad.mlp.dot"} <= {*names}
    steps = from_jax(FUNCTIONS["scan by its weights"][0], *FUNCTIONS["scan by its weights"][1]).layers
    assert sum(layer.name.startswith("grad.dot") for layer in steps) == 5 * 5 - 1


def test_resnet50_of_jax_takes_the_cycles_of_the_shipped_one() -> None:
    params = resnet50_params()
    strides = [each[0] for each in params["blocks"]]
    params["blocks"] = [each[1:] for each in params["blocks"]]

    def network(params: Any, x: Any) -> Any:
        blocks = [(stride, *each) for stride, each in zip(strides, params["blocks"], strict=True)]
        return resnet50({**params, "blocks": blocks}, x)

    work = from_jax(network, params, jax.ShapeDtypeStruct((8, 224, 224, 3), jnp.float32), ops="array")
    machine, shipped = load_hardware("tpu_v2"), load_workload("resnet50", batch=8)
    one, other = (simulate(each, machine, check=False) for each in (work, shipped))
    assert one.total.macs == other.total.macs
    assert one.total.cycles == other.total.cycles == 3_160_305


def test_edges_say_what_a_layer_reads() -> None:
    work = from_jax(*(FUNCTIONS["cnn"][0],), *FUNCTIONS["cnn"][1])
    assert work.batch == len(IMAGES)
    reads = work.inputs()
    # Numbers behind names follow where one line makes several layers.
    short = [[re.sub(r"_\d+$", "", plain(each)) for each in (name, *sources)] for name, sources in reads.items()]
    assert short == [
        ["conv", "x"], ["add", "conv"], ["max", "add"], ["max_pool", "max"], ["conv", "max_pool"], ["max", "conv"],
        ["mean", "max"], ["dot", "mean"],
    ]  # fmt: skip
    assert [source for (source,) in [*reads.values()][1:]] == [*reads][:-1]


def test_convolutions_of_several_numbers_of_images() -> None:
    """The batch divides them all; each is as many layers as it takes."""
    x, y, weights = reals(4, 3, 5, 5), reals(6, 3, 5, 5), reals(4, 3, 3, 3)

    def both(x: Any, y: Any, weights: Any) -> Any:
        return [jnp.tanh(lax.conv(each, weights, (1, 1), "SAME")) for each in (x, y)]

    assert from_jax(both, x, y, weights).batch == 2
    assert agrees(both, x, y, weights) == [*["conv2d"] * 2, "tanh", *["conv2d"] * 3, "tanh"]


def test_the_gradient_of_patches_by_their_filter_is_over_the_batch() -> None:
    """Its window has fewer pixels than the filter taps."""
    function, arguments = FUNCTIONS["patches by their filters"]
    agrees(function, *arguments)
    work = from_jax(function, *arguments)
    maps = [layer for layer in work.layers if layer.unit == "array"]
    assert [layer.text for layer in maps] == ["12x12x3>16 4x4/4"] * 2
    assert work.batch == 4


def test_what_a_choice_leaves_out_may_be_no_number() -> None:
    agrees(lambda x: jnp.where(x @ x > 0, jnp.log(x @ x), 0.0), reals(4, 4))
    masks = jnp.tril(jnp.ones((4, 4), bool))
    attention = lambda x: jax.nn.softmax(jnp.where(masks, x @ x.T, -jnp.inf)) @ x  # noqa: E731
    assert "softmax" in agrees(attention, reals(4, 4))
    agrees(jax.grad(lambda x: jnp.sum(attention(x) ** 2)), reals(4, 4))
    agrees(lambda x: x @ x - jnp.log(x[0, 0] * 0), reals(2, 2))
    with pytest.raises(InputError, match="of the 1 number of 'other' are nan"):
        agrees(lambda x: x @ x - jnp.log(x[0, 0] * 0 - 1), reals(2, 2))


def test_a_function_of_bfloat16() -> None:
    """Values are held in float32, which is at least as exact."""
    x, weights = (jnp.asarray(reals(*shape), jnp.bfloat16) for shape in ((4, 16), (16, 8)))
    work, machine = from_jax(lambda x, w: jax.nn.relu(x @ w), x, weights), load_hardware("tpu_v2")
    values = journey(work, machine, dtype="bf16")
    assert simulate(work, machine, dtype="bf16", journey=values).correct
    (found,) = values.outputs().values()
    expected = jax.nn.relu(np.asarray(x, np.float32) @ np.asarray(weights, np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


# ---- what is refused


def test_all_unknown_primitives_are_told_at_once() -> None:
    def odd(x: Any) -> Any:
        y = jnp.sort(x @ x.T, axis=1) + lax.lgamma(x[:3])
        return lax.while_loop(lambda state: state[0, 0] < 0, lambda state: state + 1, jnp.sort(y))

    with pytest.raises(InputError) as caught:
        from_jax(odd, reals(4, 4)[:3, :3])
    says = str(caught.value)
    assert says.startswith("odd: 4 primitives not known here: ")
    assert "lax.sort 2 (first of float32[3, 3] at test_jax.py:" in says
    assert "lax.lgamma 1" in says
    assert "lax.while 1" in says
    assert "while: values decide how often it goes round" in says
    assert from_jax(odd, reals(3, 3), skip_unknown=True).not_known == (
        ("lax.sort", 2),
        ("lax.lgamma", 1),
        ("lax.while", 1),
    )


@pytest.mark.parametrize(
    ("function", "arguments", "says"),
    [
        (lambda x: x @ x, (np.ones((2, 3)),), "JAX cannot trace it for these arguments: "),
        (lambda x: x, (np.ones(3),), "nothing that it computes could be run as a layer"),
        (lambda x, w: lax.conv(x, w, (1, 1, 1), "SAME"), (np.ones((1, 2, 3, 3, 3)), np.ones((2, 2, 1, 1, 1))),
         "it has 3 axes; 1 and 2 are known"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_workload_is_refused(function: Any, arguments: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        from_jax(function, *(each.astype(np.float32) for each in arguments))
    assert says in str(caught.value)


def test_values_of_every_known_primitive_can_be_computed() -> None:
    assert NODES.keys() >= NOT_TIMED
    assert NODES.keys() | OF_THE_ARRAY >= LAYERS.keys()


# ---- on the command line


MODULE = """
import jax, jax.numpy as jnp
print("imported")

def mlp(x, up, down):
    return jax.nn.relu(x @ up) @ down

def table(words, rows):
    return rows[words] @ rows.T
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(MODULE)
    return tmp_path


def test_a_function_of_a_file_is_run(module: Path) -> None:
    asked = "nets.py:mlp", "--shapes", "8x20,20x16,16x4"
    done = tpusim("run", *asked, "--save-outputs", "out.npz", "--json", "run.json")
    assert done.exit_code == 0, done.output
    layers = json.loads(Path("run.json").read_text())["layers"]
    assert [(each["name"], each["op"], each["outputs_mismatched"]) for each in layers] == [
        ("dot@nets.py:6", "gemm", 0), ("max@nets.py:6", "relu", 0), ("dot@nets.py:6_2", "gemm", 0),
    ]  # fmt: skip
    given = {"x": reals(8, 20), "up": reals(20, 16), "down": reals(16, 4)}
    np.savez("in.npz", **given)
    done = tpusim("run", "nets.py:mlp", "--input", "in.npz", "--save-outputs", "out.npz")
    assert done.exit_code == 0, done.output
    with np.load("out.npz") as held:
        expected = mlp([(given["up"], 0), (given["down"], 0)], given["x"])
        np.testing.assert_allclose(held["output"], expected, rtol=1e-4, atol=1e-4)
    assert tpusim("run", "nets.py:table", "--shapes", "2x3:i32,9x8").exit_code == 0
    # No command asks for a batch that the shapes tell.
    assert tpusim("explain", *asked, "--layer", "dot@nets.py:6").exit_code == 0
    assert tpusim("trace", *asked, "-o", "mlp.json").exit_code == 0
    assert tpusim("import", *asked, "-o", "mlp.yaml").exit_code == 0
    assert tpusim("run", "mlp.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nets.py:mlp",), "a function needs the shapes of its arguments"),
        (("nets.py:mlpp", "--shapes", "1"), "nets.py has no function mlpp; did you mean mlp?"),
        (("nets.py:mlp", "--shapes", "8x20,20x16"), "it takes x, up, down, and --shapes has 2"),
        (("nets.py:mlp", "--shapes", "8x20,20x16,1:f64"), "'1:f64' is no shape; write sizes such as 8x224x224x3"),
        (("nets.py:mlp", "--shapes", "8x20,21x16,16x4"), "JAX cannot trace it for these arguments"),
        (("nets.py:mlp", "--shapes", "8x20,20x16,16x4", "--dim", "n=1"), "a function of JAX leaves no size open"),
        (("nets.py:mlp", "--shapes", "8x20,20x16,16x4", "--batch", "4"), "the shapes are for 1 image"),
        (("none.py:mlp", "--shapes", "1"), "there is no such file of Python"),
        (("bad.py:mlp", "--shapes", "1"), "it cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_cannot_be_run_is_refused(module: Path, arguments: tuple[str, ...], says: str) -> None:
    (module / "bad.py").write_text("1 / 0")
    done = tpusim("run", *arguments)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_a_file_is_executed_only_where_its_user_gives_arguments(module: Path) -> None:
    """A sweep's file that names one executes nothing."""
    (module / "sweep.yaml").write_text("workloads: [nets.py:mlp]\nhardware: tpu_v2\n")
    (module / "nets.py").write_text(f"{MODULE}\nopen('executed', 'w').close()")
    assert tpusim("run", "nets.py:mlp").exit_code == 2
    assert tpusim("sweep", "sweep.yaml").exit_code == 2
    assert not (module / "executed").exists()
    assert tpusim("run", "nets.py:mlp", "--shapes", "8x20,20x16,16x4").exit_code == 0
    assert (module / "executed").exists()


PAGE = Page("docs/jax.md")


@pytest.mark.parametrize("step", PAGE.steps, ids=lambda step: step.text.partition("\n")[0])
def test_the_page_shows_what_is_printed(step: Step, module: Path) -> None:
    for name, text in PAGE.files.items():
        (module / name).write_text(text)
    code, printed, messages = step.typed()
    assert code == 0, messages
    assert step.shown
    assert shows(step.shown, printed + messages), printed + messages


def test_a_step_of_training_is_a_workload_of_its_own() -> None:
    """The way back takes more multiplications than the way there: gradients by weights, and by maps but the first."""
    there, step = from_jax(FUNCTIONS["cnn"][0], CNN, IMAGES), from_jax(jax.grad(cnn_loss), CNN, IMAGES, LABELS)
    macs = [sum(layer.macs(work.batch) for layer in work.layers) for work in (there, step)]
    assert 2 < macs[1] / macs[0] < 3.5


def test_gradients_are_the_layers_of_a_training_step() -> None:
    """A choice by a mask, a scattering of a window's slope, sums and differences would take other layers, or none."""
    ops = [layer.op for layer in from_jax(FUNCTIONS["a step of sgd"][0], CNN, IMAGES, LABELS).layers]
    own = "relu_gradient", "pool2d_choice", "pool2d_gradient", "channel_sum", "weighted_sum"
    assert {each: ops.count(each) for each in own} == dict(zip(own, (2, 1, 1, 1, 4), strict=True))


def test_a_maximum_of_several_axes() -> None:
    """A softmax begins with one along a single axis."""
    agrees(lambda x: jnp.exp(x @ x - (x @ x).max()), reals(4, 4))


@pytest.mark.parametrize(("sign", "kind"), [(1, "max"), (-1, "min")])
def test_gradients_that_are_no_layers_have_the_values_of_jax(sign: int, kind: str) -> None:
    """Windows over three axes, single numbers, and windows whose least element is chosen."""
    window, slopes = (1, 2, 2, 2, 1), reals(1, 2, 4, 2, 1)

    def loss(x: Any) -> Any:
        maps = (x @ x).reshape(1, 2, 4, 2, 1)
        most = lax.reduce_window(maps, -sign * jnp.inf, getattr(lax, kind), window, (1,) * 5, "SAME")
        # Least elements of windows are not known, their gradient is.
        return jnp.sum(most**3 if kind == "max" else most * slopes) + jax.nn.relu((x @ x)[0, 0]) ** 2

    def step(x: Any, rate: Any) -> Any:
        found = jax.grad(loss)(x)
        return found, rate - 0.5 * found[0, 0]

    ops = agrees(step, reals(4, 4), np.float32(2.0))
    assert not {"relu_gradient", "pool2d_gradient", "weighted_sum"} & {*ops}
