"""Results that were changed after the run are refused, whichever number was changed; those of a run are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.strategies import cases, conv, layers, machine, machines_of_all_kinds, vector_ops
from tpusim import Conv2d, Workload, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError, TpusimError
from tpusim.cli.app import app
from tpusim.network.ops.elementwise import Relu
from tpusim.network.training import USUAL, training_step
from tpusim.result.load import parse_result
from tpusim.result.records import total_of

TWO = (Conv2d("a", 16, 8, 8, 24, (3, 3)), Relu("b", 24, 6, 6))
KINDS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "plain": ("tiny_4x4", ["mapping.search=estimate"], {}),
    "real": ("tiny_4x4", ["mapping.search=estimate"], {"dtype": "bf16"}),
    "unchecked": ("tpu_v6e", [], {"check": False}),
    "overlapping": ("tpu_v2", ["sequencer.between_layers=stay"], {"check": False}),
    "fused": ("tpu_v2", ["sequencer.fusion=results"], {}),
    "of banks": ("tpu_v2_hbm", ["mapping.search=estimate"], {"check": False}),
    "of energy": ("tpu_v2", ["technology=45nm"], {"check": False}),
    "explicit": ("tpu_v2", [], {"lowering": "explicit", "check": False}),
    "GPU": ("v100", [], {}),
}
"""Runs of all kinds: machine, what is set of it, options."""

FREE = {
    "wall_seconds", "layers_left", "capacity_bytes", "hbm_reached_bytes_per_s", "channel_imbalance",
    "refreshes", "row_hits", "row_misses", "row_conflicts", "first", "words", "lanes",
}  # fmt: skip
"""Figures of a layer or a run that no other figure tells, or that others tell only in part."""
_APART = {"by_op", "by_phase", "residency", "own", "counts", "first_mismatch", "not_timed",
          "not_known", "reference_only", "dram", "vector_memory"}  # fmt: skip
"""Records of a layer, or of a run, in which a number may stand alone."""


@cache
def text_of(kind: str) -> str:
    name, changes, options = KINDS[kind]
    layers = TWO if kind != "GPU" else TWO[:1]
    return simulate(Workload("net", 2, layers), load_hardware(name, changes), **options).to_json()


def numbers(inner: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all numbers."""
    if isinstance(inner, dict | list):
        for key, value in inner.items() if isinstance(inner, dict) else enumerate(inner):
            yield from numbers(value, (*path, key))
    elif isinstance(inner, int | float) and not isinstance(inner, bool):
        yield path


def told_by_others(path: tuple[Any, ...]) -> bool:
    return path[-1] not in FREE and not {*path} & _APART


def edited(text: str, path: tuple[Any, ...], change: Any) -> str:
    data = json.loads(text)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    return json.dumps(data)


@cache
def told(kind: str) -> list[tuple[Any, ...]]:
    """The paths of numbers of a run that others tell."""
    return [path for path in numbers(json.loads(text_of(kind))) if told_by_others(path)]


@cache
def told_apart(kind: str) -> list[tuple[Any, ...]]:
    """Those that a kind is tried with where there is little time: figures that no layer and no kind before it has, or
    that are 0 in those and not in this, and one in nine of the others.
    """
    own = [*KINDS].index(kind)
    before = {each for other in [*KINDS][:own] for each in kinds_of_figures(other)}
    found = []
    for at, (path, figure) in enumerate(zip(told(kind), kinds_of_figures(kind), strict=True)):
        if figure not in before or at % len(KINDS) == own:
            found.append(path)
        before.add(figure)
    return found


@cache
def kinds_of_figures(kind: str) -> list[tuple[tuple[Any, ...], bool]]:
    """Each path that others tell, whichever layer's it is, and whether its figure is 0."""
    data = json.loads(text_of(kind))
    places = (tuple("" if isinstance(each, int) else each for each in path) for path in told(kind))
    return [(place, reduce(getitem, path, data) == 0) for place, path in zip(places, told(kind), strict=True)]


@pytest.mark.parametrize(
    ("paths", "turn"),
    [(told_apart, 0), *(pytest.param(told, turn, marks=pytest.mark.long) for turn in (0, 1))],
    ids=["apart-0", "0", "1"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_read_and_no_number_of_it_can_be_changed_alone(
    kind: str, paths: Callable[[str], list[tuple[Any, ...]]], turn: int
) -> None:
    """Each number, made larger by one and many times as large by turns."""
    text = text_of(kind)
    assert parse_result(text).to_json() == text
    assert len(told(kind)) > 40
    changes: list[Callable[[Any], Any]] = [lambda value: value + 1, lambda value: value * 1000 + 7]
    for at, path in enumerate(paths(kind)):
        with pytest.raises(
            InputError, match=r"not as a run wrote it: (layer a: |layer b: |total: |its seal|hbm_use\.)\w*"
        ):
            parse_result(edited(text, path, changes[(at + turn) % 2]))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("batch",), 64), (("hardware", "clock"), "701 MHz"), (("hardware", "array", "rows"), 5),
        (("workload",), "other"), (("hardware", "name"), "tpu_v6e"), (("layers", 0, "name"), "c"),
        (("layers", 1, "op"), "gemm"), (("layers", 0, "blocking", "blocks"), 3), (("lowering",), "auto"),
        (("layers", 0, "lowering"), "explicit"), (("engine",), "both"), (("dtype",), "bf16"), (("tpusim",), "0.1"),
        (("seed",), 5), (("chips",), 2), (("layers", 0, "inputs"), ["y"]),
    ],
)  # fmt: skip
def test_what_was_asked_cannot_be_changed_either(path: tuple[Any, ...], value: Any) -> None:
    """Nothing else in the file tells of it, but its seal."""
    data = json.loads(text_of("plain"))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(
        InputError, match="not as a run wrote it: its seal is of another machine, batch, or other layers"
    ):
        parse_result(json.dumps(data))


def test_a_file_in_another_order_or_without_a_seal_is_read() -> None:
    """As other tools write it, or older versions; a seal of another version is not compared."""
    data = json.loads(text_of("real"))
    expected = parse_result(text_of("real"))
    for changed in (dict(reversed(data.items())), {**data, "seal": ""}, {**data, "seal": "2:abc", "batch": 2}):
        assert parse_result(json.dumps(changed)) == expected
    assert parse_result(json.dumps({name: value for name, value in data.items() if name != "seal"})) == expected


@pytest.mark.parametrize("path", [("vector_memory", "port_idle_ratio"), ("vector_memory", "reads"),
                                  ("vector_memory", "writes"), ("vector_memory", "peak_bytes")])  # fmt: skip
@pytest.mark.parametrize("of", [("layers", 0), ("total",)], ids=str)
def test_memories_add_up_too(of: tuple[Any, ...], path: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="not as a run wrote it: "):
        parse_result(edited(text_of("plain"), (*of, *path), lambda value: value * 1000 + 7))


@settings(deadline=None, max_examples=cases(0.1))
@given(st.data())
def test_every_result_of_a_random_layer_and_machine_is_read(data: st.DataObject) -> None:
    layer = data.draw(st.one_of(layers(), vector_ops()))
    work = Workload("w", data.draw(st.integers(1, 3)), (layer,))
    try:
        result = simulate(work, data.draw(machines_of_all_kinds()), check=data.draw(st.booleans()))
    except TpusimError:
        return
    assert parse_result(result.to_json()) == result


@pytest.mark.parametrize("engine", ["event", pytest.param("register", marks=pytest.mark.long)])
def test_every_engine_and_a_training_step_are_read(engine: str) -> None:
    machine_ = load_hardware("tiny_4x4", ["mapping.search=estimate"])
    for work in (load_workload("tiny", 1), training_step(Workload("t", 2, (conv(2, 4, 3, 3),)), USUAL)):
        result = simulate(work, machine_, engine=engine)
        assert parse_result(result.to_json()) == result


def test_an_algorithm_of_few_multiplications_may_be_faster_than_the_peak() -> None:
    work = Workload("net", 8, [Conv2d("a", 128, 28, 28, 128, kernel=7, padding="same")])
    fast = simulate(work, load_hardware("tpu_v2"), lowering="fft", check=False)
    assert fast.total.pe_utilization > 1
    assert parse_result(fast.to_json()) == fast


def test_some_layers_of_a_run_are_read() -> None:
    """As of a run that was interrupted."""
    result = simulate(Workload("net", 2, TWO), machine(4, 4), check=False)
    some = replace(result, layers=result.layers[:1], total=total_of(result.layers[:1], 0.0), layers_left=1)
    assert parse_result(some.to_json()) == some


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("layers", 0, "outputs_mismatched"), 999_999, "layer a: outputs_mismatched, 999,999, is above outputs_"),
        (("layers", 1, "outputs_checked"), 1_729, "layer b: outputs_checked, 1,729, is above outputs, 1,728"),
        (("layers", 0, "pe_utilization"), 7.5, "layer a: pe_utilization is 7.5, and ideal_cycles and cycles make it "),
        (("total", "mapping_efficiency"), 1.5, "total: mapping_efficiency, 1.5, is a share, at most 1"),
        (("total", "outputs_checked"), 0, "total: outputs_checked is 0, and the layers make it 3,456"),
        (("layers", 1, "cycles"), 1, "layer b: the cycles of units.systolic_array do not add up to `cycles`"),
        (("layers", 0, "tflops"), 500.0, "layer a: tflops is 500, and macs and time_us make it "),
        (("layers", 0, "stall_cycles", "starved"), 3, "layer a: stall_cycles.starved is 3, and units.systolic_array."),
        (("layers", 0, "hbm_read_bytes"), 3, "total: hbm_read_bytes is "),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "command", [("compare", "run.json", "run.json"), ("report", "run.json"), ("plot", "run.json")], ids=" ".join
)
def test_every_command_refuses_a_changed_result(
    path: tuple[Any, ...],
    value: Any,
    says: str,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(edited(text_of("plain"), path, lambda _: value))
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert done.stderr.startswith(f"Error: run.json: not as a run wrote it: {says}")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
