"""A training step by `jax.grad` beside the step that tpusim writes itself, of one network."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tpusim import Workload, from_jax, load_hardware, load_workload, simulate, training_step

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

from tests.network.jax_functions import conv, cross_entropy, reals  # noqa: E402

NETWORK = """
name: small
layers:
  - {name: conv1, op: conv2d, in_channels: 3, in_height: 16, in_width: 16, out_channels: 32, kernel: 3, padding: 1}
  - {name: relu1, op: relu}
  - {name: pool, op: pool2d, kind: max, kernel: 2, stride: 2}
  - {name: conv2, op: conv2d, out_channels: 48, kernel: 3, stride: 2, padding: 1}
  - {name: relu2, op: relu}
  - {name: conv3, op: conv2d, out_channels: 64, kernel: 1, stride: 2}
  - {name: depthwise, op: conv2d, out_channels: 64, kernel: 3, padding: 1, groups: 64}
  - {name: mean, op: pool2d, kind: average, kernel: 2}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, m: batch, n: 10}
"""
SHAPES = (3, 3, 3, 32), (3, 3, 32, 48), (1, 1, 48, 64), (3, 3, 1, 64), (64, 10)
BATCH = 8


def network(params: Any, x: Any) -> Any:
    first, second, third, depthwise, dense = params
    x = jax.nn.relu(conv(x, first))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = conv(jax.nn.relu(conv(x, second, 2, ((1, 1), (1, 1)))), third, 2, "VALID")
    return jnp.mean(conv(x, depthwise, feature_group_count=64), (1, 2)) @ dense


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, Workload]:
    """The network's step by `jax.grad`, and by `training_step`."""
    path = tmp_path_factory.mktemp("step") / "small.yaml"
    path.write_text(NETWORK)
    params, x = [reals(*shape) for shape in SHAPES], reals(BATCH, 16, 16, 3)

    def loss(params: Any, x: Any, labels: Any) -> Any:
        return cross_entropy(network(params, x), labels)

    return from_jax(jax.grad(loss), params, x, np.arange(BATCH)), training_step(load_workload(path, BATCH))


@pytest.mark.parametrize("machine", ["tpu_v2", "tpu_v2_core"])
def test_products_take_the_cycles_of_a_training_step(machine: str, steps: tuple[Workload, Workload]) -> None:
    def layers(work: Workload) -> Counter[tuple[str, str, int]]:
        # Each by itself, as layers that others carry are none of their own.
        result = simulate(work, load_hardware(machine, ["sequencer.fusion=none"]), check=False)
        pairs = zip(work.layers, result.layers, strict=True)
        return Counter((layer.op, layer.text, each.cycles) for layer, each in pairs if layer.unit == "array")

    by_jax, own = map(layers, steps)
    assert by_jax == own
    # Each of five is computed, and has two gradients, but the first has one.
    assert by_jax.total() == 3 * 5 - 1


def test_what_differs_from_a_training_step(steps: tuple[Workload, Workload]) -> None:
    """JAX writes the loss and the gradient of an average out; `jax.grad` updates nothing."""
    by_jax, own = (Counter((layer.op, layer.text) for layer in work.layers) for work in steps)
    assert {op for op, _ in own - by_jax} == {
        "cross_entropy",
        "cross_entropy_gradient",
        "pool2d_gradient",
        "weighted_sum",
    }
    assert {op for op, _ in by_jax - own} <= {"sub", "exp", "mul", "div", "add"}
