"""`tpusim scale`: each row is what `tpusim run` says of that slice, and what cannot run says so in its row."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import tpusim
from tests.cli.test_shared_networks import ESTIMATE, NETWORK
from tests.covering import covering, few
from tpusim.base.errors import InputError
from tpusim.cli.app import app
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.network.mesh import REST, on_chips


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NETWORK)
    return "net.yaml"


def typed(*arguments: str) -> Result:
    estimate = [] if "h100" in arguments else ["--set", ESTIMATE]
    return CliRunner().invoke(app, [*arguments, *estimate])


def scaled(*arguments: str) -> dict[str, Any]:
    done = typed("scale", *arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def refused(*arguments: str) -> str:
    done = typed("scale", *arguments)
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("mesh", "more"),
    covering(
        1,
        ["fsdp=*", "tensor=2,data=*"],
        [
            (),
            ("--training", "--set", "slice.overlap=none"),
            ("--set", "sequencer.between_layers=overlap", "--dtype", "int8"),
        ],
    ),
)
def test_a_row_is_what_a_run_of_that_slice_says(network: str, mesh: str, more: tuple[str, ...]) -> None:
    data = scaled(network, "--slices", "v6e_2x4,v6e_2x2", "--mesh", mesh, "--batch", "16", *more)
    assert [each["slice"] for each in data["slices"]] == ["v6e_2x2", "v6e_2x4"]
    for row in data["slices"][-1:] if more else data["slices"]:
        alone = ("--slice", row["slice"], "--mesh", mesh, "--batch", "16", "--no-check", "--json", "-")
        ran = typed("run", network, *alone, *more)
        assert ran.exit_code == 0, ran.output
        step = json.loads(ran.stdout)["step"]
        for key in ("cycles", "seconds", "parts", "mesh", "chips", "items_per_second"):
            assert row[key] == step[key], key
        assert sum(row["parts"].values()) == row["cycles"]
        assert row["batch"] == 16
    small, large = data["slices"]
    assert small["of_ideal"] == 1
    ideal = small["items_per_second"] / small["chips"] * large["chips"]
    assert large["of_ideal"] == pytest.approx(large["items_per_second"] / ideal)


def test_a_batch_a_chip_grows_with_chips(network: str) -> None:
    data = scaled(network, "--slices", "v6e_1x1,v6e_2x2,v6e_2x4", "--batch-a-chip", "2")
    assert data["batch_a_chip"] == 2
    assert [(each["chips"], each["batch"], each["mesh"]) for each in data["slices"]] == [
        (1, 2, {"data": 1}),
        (4, 8, {"data": 4}),
        (8, 16, {"data": 8}),
    ]
    # Chips that only share a batch exchange nothing on the way forward.
    assert [each["of_ideal"] for each in data["slices"]] == pytest.approx([1, 1, 1])


def test_what_cannot_run_says_so_in_its_row(network: str) -> None:
    """A batch that chips do not part, and a share that HBM does not hold; the others are there."""
    data = scaled(network, "--slices", "v6e_2x2,v6e_2x4,v6e_4x4", "--batch", "8")
    assert [bool(each["cycles"]) for each in data["slices"]] == [True, True, False]
    assert "not parted evenly by 16 chips" in data["slices"][2]["refusal"]
    little = (network, "--training", "--mesh", "fsdp=*", "--batch", "8", "--slices", "v6e_2x2,v6e_2x4")
    done = typed("scale", *little, "--set", "hbm.capacity=1300 kB")
    assert done.exit_code == 0, done.output
    assert re.search(r"^v6e_2x2 +4 .* no room ", done.stdout, re.MULTILINE)
    assert re.search(r"^v6e_2x4 +8 .* 100 ", done.stdout, re.MULTILINE)
    assert re.search(r"^v6e_2x2: network .* needs .* of HBM in each chip", done.stdout, re.MULTILINE)
    assert "needs" in refused(*little, "--set", "hbm.capacity=1 kB")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--slices", "v6e_2x2,v5e_4x4"), r"chips of TPU v6e and TPU v5e have no ideal in common"),
        (("--slices", "v6e_2x2,v6e_2x2"), r"--slices: v6e_2x2 is named twice; name it once"),
        (("--slices", "v6e_2x2,,v6e_2x4"), r"--slices: .* leaves a name out"),
        (("--slices", "v6e_9,v9_2x2"), r"v6e_9: no such slice.* v9_2x2: no such slice"),
        (("--slices", "v6e_2x2", "--batch", "4", "--batch-a-chip", "1"), r"leave one out"),
        (("--slices", "v6e_2x2", "--mesh", "fsdp=*,data=*"), r"fsdp and data cannot both take the rest"),
        (("--slices", "v6e_2x2", "--mesh", "tensor=3,data=*"), r"do not part the 4 of v6e_2x2 evenly"),
        (("--slices", "v6e_2x2", "--mesh", "tensor=x"), r"--mesh: 'tensor=x' is no axis with a size"),
        (("--slices", "v6e_2x2", "--hardware", "h100"), r"of TPUs alone"),
        (("--slices", "v6e_2x2", "--out", "scaling.txt"), r"it is written as .png, .svg, .pdf, .html, not as .txt"),
        (("--slices", "v6e_2x2", "--out", "a.png", "--json", "a.png"), r"--json a.png|both would write a.png"),
        (("--slices", "v6e_2x2", "--set", "slice.overlop=none"), r"--set slice.overlop=none"),
        (("--slices", "v6e_2x2", "--dim", "width=4"), r"no size \"width\""),
        ((), r"--slices"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(network: str, options: tuple[str, ...], says: str) -> None:
    assert re.search(says, refused(network, *options))
    assert not [*Path().glob("a.*")]


def test_standard_input_is_refused() -> None:
    assert "standard input is read once" in refused("-", "--slices", "v6e_2x2")


@pytest.mark.parametrize(
    ("suffix", "begins"),
    few(1, [("html", b"<!doctype html>"), ("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]),
)
def test_a_picture_or_a_page_is_written(network: str, suffix: str, begins: bytes) -> None:
    done = typed("scale", network, "--slices", "v6e_2x2,v6e_2x4", "--batch", "8", "--out", f"scaling.{suffix}")
    assert done.exit_code == 0, done.output
    contents = Path(f"scaling.{suffix}").read_bytes()
    assert contents.lower().startswith(begins.lower())
    if suffix == "html":
        assert b"v6e_2x4" in contents
        assert b"<figure>" in contents
        assert b"<script" not in contents


def test_python_says_what_the_command_says(network: str) -> None:
    told: list[str] = []
    answer = tpusim.scale(
        network, ["v6e_2x2", load_slice("v6e_2x4")], batch=8, mesh={"fsdp": "*"}, set=ESTIMATE,
        progress=lambda done, total, what: told.append(f"{done}/{total} {what}"),
    )  # fmt: skip
    assert answer.to_dict() == scaled(network, "--slices", "v6e_2x2,v6e_2x4", "--batch", "8", "--mesh", "fsdp=*")
    frame = answer.to_frame()
    assert frame["chips"].tolist() == [4, 8]
    shares = frame[[each for each in frame if each.endswith("_share")]].sum(axis=1)
    assert shares.tolist() == pytest.approx([1, 1])
    assert any(each.startswith("0/2 v6e_2x2: ") for each in told)
    assert any(each.startswith("1/2 v6e_2x4: ") for each in told)
    assert "v6e_2x4" in answer._repr_html_()
    # The run of each slice is there, for other commands.
    runs = [each.result for each in answer.found.each]
    assert len(tpusim.compare(*runs).rows) == 3
    assert [run.step.slice for run in runs] == ["v6e_2x2", "v6e_2x4"]


@pytest.mark.parametrize(("slices", "more"), [("v6e_2x2", {}), ([], {}), (["v6e_2x2"], {"batch": 0}),
                                              (["v6e_2x2"], {"batch_a_chip": "1"})])  # fmt: skip
def test_python_refuses_what_the_command_cannot_be_given(slices: Any, more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"names no slices|is no number of images"):
        tpusim.scale("tiny", slices, **more)


# ---- an axis that takes the rest


@given(st.dictionaries(st.sampled_from(("data", "tensor", "expert")), st.integers(1, 6)), st.integers(1, 64))
def test_an_axis_takes_the_chips_that_others_leave(others: dict[str, int], left: int) -> None:
    chips = left * prod(others.values())
    found = on_chips({"fsdp": REST, **others}, "s", chips)
    assert found == {"fsdp": left, **others}
    if prod(others.values()) > 1:
        with pytest.raises(InputError, match="do not part"):
            on_chips({**others, "fsdp": REST}, "s", chips + 1)
    assert on_chips(others, "s", chips + 1) == others


def test_a_run_takes_the_rest_of_its_slice(network: str) -> None:
    asked = ("run", network, "--slice", "v6e_2x4", "--no-check", "--batch", "8", "--json", "-")
    one, other = (json.loads(typed(*asked, "--mesh", mesh).stdout) for mesh in ("tensor=4,data=*", "tensor=4,data=2"))
    assert one["step"] == other["step"]
    nowhere = typed("run", network, "--mesh", "tensor=4,data=*", "--hardware", "tpu_v6e", "--no-check")
    assert nowhere.exit_code == 2
    assert "name a slice, or a number" in " ".join(nowhere.output.split())
