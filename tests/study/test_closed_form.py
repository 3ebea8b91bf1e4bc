"""Closed forms of other simulators beside a run: `tpusim compare --closed-form`."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.strategies import cases
from tpusim import load_hardware
from tpusim.base.errors import InputError
from tpusim.cli.app import app
from tpusim.flow.jobs import resolve
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.workload import Workload
from tpusim.study.closed_form import ComparedForms, compare_with_forms, sizes_of

ESTIMATED = ["mapping.search=estimate"]


def compared(*layers: Gemm | Conv2d, batch: int = 1, machine: str = "tiny_4x4") -> ComparedForms:
    work = Workload("net", batch, layers)
    return compare_with_forms(resolve(work, load_hardware(machine, ESTIMATED)))


@settings(deadline=None, max_examples=cases())
@given(m=st.integers(1, 40), k=st.integers(1, 20), n=st.integers(1, 20))
def test_a_product_takes_what_scale_sim_counts(m: int, k: int, n: int) -> None:
    """By SCALE-Sim's own words: folds, each filled, streamed through and drained."""
    (layer,) = compared(Gemm("fc", m=m, k=k, n=n)).layers
    fill, stream, drain = 4, m, 4 + 4 - 2
    assert layer.folds == ceil(k / 4) * ceil(n / 4)
    assert layer.scale_sim_cycles == layer.folds * (fill + stream + drain) - 1
    assert layer.no_drain_cycles == layer.folds * m + layer.passes * 4
    assert layer.passes % layer.folds == 0
    assert layer.ratio == layer.cycles / layer.scale_sim_cycles
    assert 0 < layer.array_cycles <= layer.cycles


def test_a_convolution_is_the_product_that_it_is_of_all_images() -> None:
    conv = Conv2d("conv", in_channels=3, in_height=6, in_width=7, out_channels=5, kernel=(3, 2), padding="same")
    one, two = (compared(conv, batch=batch).layers[0] for batch in (1, 2))
    assert one.folds == two.folds == ceil(18 / 4) * 2
    assert two.scale_sim_cycles - one.scale_sim_cycles == one.folds * 6 * 7


def test_layers_that_scale_sim_has_not_are_named() -> None:
    grouped = Conv2d("grouped", in_channels=4, in_height=5, in_width=5, out_channels=4, kernel=3, groups=2)
    wide = Conv2d("wide", in_channels=4, in_height=9, in_width=9, out_channels=4, kernel=3, dilation=2)
    uneven = Conv2d("uneven", in_channels=4, in_height=9, in_width=9, out_channels=4, kernel=3, stride=(1, 2))
    side_by_side = Gemm("side_by_side", m=3, k=4, n=5, groups=2)
    others = grouped, wide, uneven, side_by_side
    assert [sizes_of(each) for each in others] == [()] * 4
    found = compared(*others, Gemm("fc", m=3, k=4, n=5))
    assert [layer.name for layer in found.layers] == ["fc"]
    assert [*found.without] == [layer.name for layer in others]
    assert found.together[1:] == found.layers[0][1:]
    with pytest.raises(InputError, match="none of its layers has a closed form"):
        compared(*others)


def tpusim(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


def test_the_command_shows_what_is_written_as_json() -> None:
    asked = "compare", "tiny", "--closed-form", "--hardware", "tiny_4x4", "--batch", "2", "--set", *ESTIMATED
    code, words, _ = tpusim(*asked)
    assert code == 0
    code, text, _ = tpusim(*asked, "--json", "-")
    made = json.loads(text)
    assert (made["array"], made["batch"], code) == ({"rows": 4, "cols": 4}, 2, 0)
    for layer in made["by_form"]:
        assert f"{layer['scale_sim_cycles']:,}" in words
        assert layer["name"] in words
    for key in ("folds", "passes", "scale_sim_cycles", "no_drain_cycles", "array_cycles", "cycles"):
        assert made["together"][key] == sum(layer[key] for layer in made["by_form"])
    # The same cycles as in a run.
    code, run, _ = tpusim("run", *asked[1:2], *asked[3:], "--no-check", "--json", "-")
    assert [each["cycles"] for each in json.loads(run)["layers"]] == [each["cycles"] for each in made["by_form"]]


def test_what_cannot_be_compared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for asked, says in {
        ("tiny", "tiny", "--closed-form"): "tiny: not beside --closed-form, which is of one network",
        ("run.json",): "run.json: name another result to compare it with; or --closed-form, for a network",
        ("a.json", "b.json", "--batch", "3", "--set", "array.size=2"): "--batch, --set: only beside --closed-form",
        ("tiny", "--closed-form", "--hardware", "v100"): "it has no systolic array",
        ("tiny", "--closed-form", "--layers", "nothing"): "nothing",
        ("a.json", "--closed-form"): "a.json",
    }.items():
        code, _, told = tpusim("compare", *asked)
        assert code == 2, asked
        assert says in told
        assert not [*tmp_path.iterdir()]
