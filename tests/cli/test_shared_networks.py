"""Networks that several chips share, on the command line and in Python: what is told of them, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tpusim
from tpusim.api.asked import asked_for, slice_for
from tpusim.base.errors import InputError
from tpusim.cli.app import app
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.network.formats import ModelOptions
from tpusim.network.workload import CollectiveLayer
from tpusim.result.load import parse_result, read_result
from tpusim.study.explain.network import other_meshes

NETWORK = """
name: net
sizes: {inner: 512, tokens: 64}
shard: {inner: tensor}
layers:
  - {name: first, op: gemm, m: batch*tokens, k: 256, n: 256}
  - {name: up, op: gemm, n: inner}
  - {name: down, op: gemm, n: 256}
"""
ESTIMATE = "mapping.search=estimate"


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NETWORK)
    return "net.yaml"


def run(*arguments: str) -> Result:
    estimate = [] if "h100" in arguments else ["--set", ESTIMATE]
    return CliRunner().invoke(app, ["run", *arguments, *estimate, "--no-check", "--batch", "16"])


def told(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    return done.output


def test_a_run_tells_its_step(network: str) -> None:
    text = told(network, "--mesh", "data=2,tensor=4", "--slice", "v6e_8", "--out", "out")
    result = read_result(Path("out"))
    assert result.step is not None
    assert result.hardware["name"] == "tpu_v6e"
    assert re.search(r"batch 8 a chip, .*one chip's share of 8", text)
    assert "A step of 8 chips, data 2, tensor 4, on v6e_8" in text
    assert f"{result.step.cycles:,} cycles" in text
    assert "tokens a second" in text
    for each in result.step.collectives:
        assert re.search(rf"^{each.name} ", text, re.MULTILINE), each.name
    parts = re.findall(r"^(?:compute|HBM|launches|HBM for collectives|links) +([\d,]+) ", text, re.MULTILINE)
    assert sum(int(each.replace(",", "")) for each in parts) == result.step.cycles
    assert "Layers of a chip, one by one" in text


def test_json_and_python_tell_the_same(network: str) -> None:
    held = json.loads(told(network, "--mesh", "tensor=4", "--slice", "v6e_2x2", "--json", "-"))
    asked = asked_for(network, None, 16, [ESTIMATE], ModelOptions(mesh={"tensor": 4}), slice="v6e_2x2")
    result = tpusim.simulate(asked.work, asked.machine, check=False, slice="v6e_2x2")
    mine = json.loads(result.to_json())
    assert held["step"] == mine["step"]
    assert [*held["step"]["parts"]] == ["compute", "hbm", "launches", "shared_hbm", "links", "dcn", "host", "bubble"]
    assert parse_result(json.dumps(held)).step == result.step


def test_a_slice_without_a_mesh_parts_the_batch(network: str) -> None:
    held = json.loads(told(network, "--slice", "v6e_2x2", "--json", "-"))
    assert (held["step"]["mesh"], held["batch"]) == ({"data": 4}, 4)
    same = json.loads(told(network, "--slice", "v6e_2x2", "--mesh", "data=4", "--json", "-"))
    assert held["step"] == same["step"]


def test_a_chip_may_be_another_machine(network: str) -> None:
    held = json.loads(told(network, "--slice", "v6e_2x2", "--hardware", "tpu_v5e", "--json", "-"))
    assert held["hardware"]["name"] == "tpu_v5e"
    assert held["step"]["slice"] == "v6e_2x2"


def test_fields_of_a_slice_are_set(network: str) -> None:
    asked = (network, "--mesh", "tensor=4", "--slice", "v6e_2x2", "--json", "-")
    plain, none, fast = (
        json.loads(told(*asked, *more))["step"]
        for more in ((), ("--set", "slice.overlap=none"), ("--set", "slice.interconnect.link.bandwidth=400 GB/s"))
    )
    assert none["slice"] == "v6e_2x2 with overlap=none"
    assert none["cycles"] >= plain["cycles"] > fast["cycles"]


def test_a_run_of_one_chip_has_no_step(network: str) -> None:
    assert "step" not in json.loads(told(network, "--hardware", "tpu_v6e", "--json", "-"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--mesh", "tensor=4", "--hardware", "tpu_v6e"),
            r"slice: 4 chips share net, .* name a slice, such as v6e_2x2",
        ),
        (("--mesh", "tensor=4", "--slice", "v6e_8"), r"4 chips, and v6e_8 has 8; write sizes whose product is 8, or"),
        (("--mesh", "tensor=4", "--slice", "v6e_9"), r"v6e_9: no such slice"),
        (("--mesh", "tensor=4", "--slice", "v6e_2x2", "--hardware", "h100"), r"h100 is a GPU, .* of TPUs alone"),
        (("--set", "slice.overlap=none"), r"--set slice.overlap=none: no slice is named; name one with --slice"),
        (("--slice", "v6e_2x2", "--set", "slice.overlap=some"), r"--set slice.overlap=some: .*write layers or none"),
        (("--slice", "v6e_2x2", "--set", "slice.overlop=none"), r"--set slice.overlop=none"),
        (("--slice", "v6e_2x2", "--tokens", "4"), r"--slice: not beside --tokens"),
    ],
)
def test_what_cannot_be_is_refused(network: str, options: tuple[str, ...], says: str) -> None:
    assert re.search(says, " ".join(refused(network, *options).split()))


def test_changes_are_parted() -> None:
    assert slice_for(None, None) == ([], None)
    assert slice_for(None, {"array.rows": 4})[0] == ["array.rows=4"]
    others, place = slice_for("v6e_2x2", ["array.rows=4", " slice.slices=2"])
    assert others == ["array.rows=4"]
    assert place == load_slice("v6e_2x2", "slices=2")
    with pytest.raises(InputError, match="loaded already"):
        slice_for(load_slice("v6e_2x2"), ["slice.slices=2"])


@pytest.mark.parametrize("mesh", [{"tensor": 8}, {"fsdp": 4, "tensor": 2}, {"data": 3}, {"data": 1, "expert": 4}])
def test_other_meshes_are_of_as_many_chips(mesh: Mapping[str, int]) -> None:
    found = other_meshes(mesh)
    product = 1
    for chips in mesh.values():
        product *= chips
    for each in found:
        made = 1
        for chips in each.values():
            made *= chips
        assert made == product
        assert each != mesh
    assert found


def test_explain_tells_what_links_bound_and_what_another_mesh_gives(network: str) -> None:
    mesh = {"data": 2, "tensor": 2}
    answer = tpusim.explain(network, batch=16, slice="v6e_2x2", mesh=mesh, set=[ESTIMATE])
    found, gains = answer.found, {each.name: each for each in answer.found.gains}
    assert found.step is not None
    assert found.cycles == found.step.cycles
    none = gains["no collective beside layers"]
    assert (
        none.cycles
        == json.loads(
            told(
                network, "--mesh", "data=2,tensor=2", "--slice", "v6e_2x2", "--set", "slice.overlap=none", "--json", "-"
            )
        )["step"]["cycles"]
    )
    links = next(each for each in gains if each.startswith("between chips, links of"))
    assert gains[links].cycles < found.cycles
    other = gains["the mesh data 4"]
    assert other.how == "--mesh data=4"
    with_it = json.loads(told(network, "--mesh", "data=4", "--slice", "v6e_2x2", "--json", "-"))["step"]
    assert other.cycles == with_it["cycles"]
    assert other.gain == pytest.approx(found.cycles / with_it["cycles"])
    assert "A step of 4 chips, data 2, tensor 2" in str(answer)
    # The batch is that of all chips, of which one has a half.
    twice = gains["twice the batch"]
    assert twice.how == "--batch 32"
    assert twice.gain == pytest.approx(2 * found.cycles / twice.cycles)


def test_a_step_is_traced(network: str) -> None:
    mesh = ("--mesh", "data=2,tensor=2", "--slice", "v6e_2x2")
    step = json.loads(told(network, *mesh, "--json", "-"))["step"]
    asked = [network, *mesh, "--batch", "16", "--set", ESTIMATE]

    def traced(*more: str) -> list[dict[str, object]]:
        done = CliRunner().invoke(app, ["trace", *asked, "--out", "step.json", *more])
        assert done.exit_code == 0, done.output
        events: list[dict[str, object]] = json.loads(Path("step.json").read_text())["traceEvents"]
        return events

    events = traced()
    links = [each for each in events if each["ph"] == "X" and "holds" in each["args"]]  # type: ignore[operator]
    spans = {(each["name"], each["ts"], each["ts"] + each["dur"]) for each in links}  # type: ignore[operator]
    assert spans == {(each["name"], each["start"], each["end"]) for each in step["collectives"]}
    layers = [each for each in events if each["ph"] == "X" and each not in links]
    parts = step["parts"]
    of_layers = sum(parts[each] for each in ("compute", "hbm", "launches", "shared_hbm"))
    assert sum(each["dur"] for each in layers) == of_layers  # type: ignore[misc]
    half = step["cycles"] // 2
    ends = [each["ts"] + each["dur"] for each in traced("--to", str(half - 1)) if each["ph"] == "X"]  # type: ignore[operator]
    assert max(ends) == half


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--slice", "v6e_2x2"), "--slice: the trace of a step is a timeline; write it with --out FILE"),
        (("--slice", "v6e_2x2", "--out", "step.vcd"), "--slice: the trace of a step is a timeline"),
        (("--slice", "v6e_2x2", "--mesh", "data=2", "--out", "step.json"), "mesh: 2 chips, and v6e_2x2 has 4"),
    ],
)
def test_what_cannot_be_traced_is_refused(network: str, options: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["trace", network, "--batch", "16", *options])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
    assert not Path("step.json").exists()


def test_one_chip_needs_no_slice(network: str) -> None:
    """Values of one chip go nowhere, whatever its axes are called."""
    alone, named = (
        re.sub(r"in [\d.]+ s", "", told(network, "--hardware", "tpu_v6e", *mesh))
        for mesh in ((), ("--mesh", "tensor=1,data=1"))
    )
    assert named == alone
    assert "1 chip, and v6e_8 has 8" in refused(network, "--mesh", "tensor=1", "--slice", "v6e_8")


_SOUND = CollectiveLayer("sum", "all_reduce", 64, ("data",), ("product",), ())


@pytest.mark.parametrize(
    ("mesh", "changes", "says"),
    [
        ((("data", 0),), {}, "mesh.data: 0 is out of range"),
        ((("data", 2), ("data", 2)), {}, "mesh.data: an axis is named twice"),
        ((("host", 2),), {}, "mesh.host: .* names no axis"),
        ((("data", 2),), {"name": "product"}, "collective product: another collective or a layer has that name"),
        ((("data", 2),), {"elements": 0}, "collective sum: 0 elements are none"),
        ((("data", 2),), {"over": ("tensor",)}, "collective sum: there is no axis 'tensor'; the mesh has data"),
        ((("data", 2),), {"op": "all_redduce"}, "sum: no op 'all_redduce' of several chips; did you mean all_reduce"),
    ],
)
def test_a_share_made_by_hand_is_checked(mesh: tuple[tuple[str, int], ...], changes: dict[str, Any], says: str) -> None:
    def step() -> None:
        share = tpusim.Workload("net", 8, [tpusim.Gemm("product", m=8, k=8, n=8)], mesh=mesh,
                                collectives=(_SOUND._replace(**changes),))  # fmt: skip
        tpusim.simulate(share, tpusim.load_hardware("tpu_v6e"), check=False, slice="v6e_1x2")

    with pytest.raises(InputError, match=says):
        step()


@pytest.mark.parametrize("slice_", [8, ["v6e_8"], 1.5, b"v6e_8"])
def test_what_is_no_slice_is_refused(network: str, slice_: object) -> None:
    share = tpusim.load_workload(network, batch=16, mesh={"data": 8})
    with pytest.raises(InputError, match="no shipped slice"):
        tpusim.simulate(share, tpusim.load_hardware("tpu_v6e"), check=False, slice=slice_)
