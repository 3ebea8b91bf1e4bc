"""A decoder token by token, with its cache from step to step: what it says is what ONNX's evaluator and PyTorch say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

from tests.flow.gpt2 import EPSILON, SMALL, Arrays, Size, exported, weights_of
from tests.flow.journeys import ENGINE, go
from tpusim import load_hardware
from tpusim.cli import app as cli
from tpusim.flow.jobs import resolve
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.workload_file import open_workload, workload_of

SEED = 3
pytestmark = pytest.mark.xdist_group("decoding")  # One run serves several tests.
STEPS = 3
TINY = Size(blocks=2, width=32, heads=4, vocabulary=50, context=16)
PROMPTS = np.array([[7, 11, 3], [42, 0, 7]])
NEAR = 1e-5
"""The largest error, as a part of the largest number: each output of a layer is within the bound of its own sum, and
errors of float32 add up along the way.
"""


class Decoded(NamedTuple):
    """A decoder, the words of its prompts, and what was made of them: an array by name for each step."""

    size: Size
    weights: Arrays
    path: Path
    prompts: np.ndarray
    steps: list[Arrays]

    def words(self, step: int) -> np.ndarray:
        """The words that each sequence has before the step."""
        return np.concatenate([self.prompts, *(chosen(each) for each in self.steps[:step])], axis=1)


def chosen(made: Arrays) -> np.ndarray:
    """The word that each sequence goes on with, the likeliest."""
    return made["logits"][:, -1:].argmax(axis=-1)


def handed_on(made: Arrays) -> Arrays:
    """The inputs of the next step: the word, and the cache."""
    past = {name.replace("present", "past"): each for name, each in made.items() if name.startswith("present")}
    return {"tokens": chosen(made), **past}


def error(made: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, as a part of the largest number."""
    assert made.shape == expected.shape
    return float(np.abs(made - expected).max() / np.abs(expected).max())


def stepped(path: Path, given: Arrays, machine: str, engine: str) -> Arrays:
    """What comes out of a step of the decoder, of which every output of every layer is checked on a machine."""
    asked, hardware = ModelOptions(arrays=given), load_hardware(machine)
    document = open_workload(path, asked)
    sequences = len(given["tokens"])
    assert document.images == sequences
    work, graph = resolve(workload_of(document, sequences), hardware).work, read_graph(path, asked, sequences)
    journey = Journey(graph, work, checked(graph, given, sequences), numbers_of("f32", "any"))
    go(journey, work, engine, hardware=machine)
    return journey.outputs()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((TINY, "tiny_4x4", PROMPTS, ENGINE), id="tiny"),
        pytest.param((TINY, "tiny_4x4", PROMPTS, "event"), id="tiny on a machine", marks=pytest.mark.long),
        pytest.param(
            (SMALL, "tpu_v6e", np.array([[464, 3290, 318]]), "event"), id="gpt2_small", marks=pytest.mark.long
        ),
    ],
)
def decoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Decoded]:
    size, machine, prompts, engine = request.param
    weights, steps = weights_of(size, SEED), list[Arrays]()
    path = exported(size, weights, tmp_path_factory.mktemp("decoder"))
    given = size.first(prompts)
    for _ in range(STEPS):
        steps.append(stepped(path, given, machine, engine))
        given = handed_on(steps[-1])
    yield Decoded(size, weights, path, prompts, steps)
    path.with_name("weights.bin").unlink()


def test_words_logits_and_cache_are_those_of_the_evaluator(decoded: Decoded) -> None:
    """The evaluator goes its own way from the prompt, with its own cache."""
    evaluator = ReferenceEvaluator(str(decoded.path))
    given = decoded.size.first(decoded.prompts)
    for step, made in enumerate(decoded.steps):
        expected = dict(zip(evaluator.output_names, evaluator.run(None, given), strict=True))
        tokens = decoded.prompts.shape[1] + step
        assert made["present_key_0"].shape[2] == tokens
        assert {*made} == {*expected}
        for name, each in expected.items():
            assert made[name].dtype == each.dtype
            assert error(made[name], each) < NEAR, f"{name} after {tokens} tokens"
        given = handed_on(expected)
        np.testing.assert_array_equal(chosen(made), given["tokens"])


def test_words_differ_from_step_to_step(decoded: Decoded) -> None:
    """A decoder that repeats one word would hide a cache in disorder."""
    for sequence in decoded.words(STEPS)[:, -STEPS:].tolist():
        assert len({*sequence}) > STEPS // 2


def test_a_cache_keeps_what_it_held(decoded: Decoded) -> None:
    """To the bit: a step adds a token to it."""
    for before, after in zip(decoded.steps, decoded.steps[1:], strict=False):
        for name in decoded.size.caches:
            held = before[f"present_{name}"]
            np.testing.assert_array_equal(after[f"present_{name}"][:, :, : held.shape[2]], held)


def test_words_logits_and_cache_are_those_of_pytorch(decoded: Decoded) -> None:
    """PyTorch reads all words anew at each step, and needs no cache."""
    torch = pytest.importorskip("torch")
    weights = {name: torch.from_numpy(each) for name, each in decoded.weights.items()}
    for step, made in enumerate(decoded.steps):
        expected = by_torch(torch, decoded.size, weights, torch.from_numpy(decoded.words(step)))
        for name, each in expected.items():
            # Logits are of the words that are new; keys and values are of all.
            wanted = each[:, -made[name].shape[1] :] if name == "logits" else each
            assert error(made[name], wanted.numpy()) < NEAR, f"{name} of step {step}"
        np.testing.assert_array_equal(chosen(made)[:, 0], expected["logits"][:, -1].argmax(-1).numpy())


def by_torch(torch: Any, size: Size, weights: Any, words: Any) -> dict[str, Any]:
    """Logits, keys and values of all words, as the network is defined (Radford et al. 2019)."""
    functional, made, (sequences, tokens) = torch.nn.functional, dict[str, Any](), words.shape

    def normal(name: str, x: Any) -> Any:
        return functional.layer_norm(x, [size.width], weights[f"{name}.scale"], weights[f"{name}.shift"], EPSILON)

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"].T, weights[f"{name}.bias"])

    x = functional.embedding(words, weights["words"]) + weights["places"][:tokens]
    for block in range(size.blocks):
        together = linear(f"{block}.queries_keys_values", normal(f"{block}.before", x))
        query, key, value = (
            each.view(sequences, tokens, size.heads, size.head).transpose(1, 2) for each in together.chunk(3, dim=-1)
        )
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + linear(f"{block}.projection", found.transpose(1, 2).reshape(sequences, tokens, size.width))
        inner = functional.gelu(linear(f"{block}.up", normal(f"{block}.between", x)), approximate="tanh")
        x = x + linear(f"{block}.down", inner)
        made |= {f"present_key_{block}": key, f"present_value_{block}": value}
    return {"logits": normal("last", x) @ weights["words"].T, **made}


def test_the_command_line_goes_from_step_to_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cache of one run in the file that the next one reads."""
    monkeypatch.chdir(tmp_path)
    size = replace(TINY, blocks=1, width=16, heads=2)
    path = exported(size, weights_of(size, SEED), tmp_path)
    given, evaluator = size.first(PROMPTS), ReferenceEvaluator(str(path))
    for _ in range(2):
        np.savez("step.npz", **given)
        asked = "run", path.name, "--input", "step.npz", "--save-outputs", "made.npz", "--hardware", "tiny_4x4"
        done = CliRunner().invoke(cli.app, [*asked, "--set", "mapping.search=estimate"])
        assert done.exit_code == 0, done.output
        with np.load("made.npz") as held:
            made = {**held}
        for name, expected in zip(evaluator.output_names, evaluator.run(None, given), strict=True):
            assert error(made[name], expected) < NEAR
        given = handed_on(made)
