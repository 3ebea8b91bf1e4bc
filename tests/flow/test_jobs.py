"""Jobs: what runs is settled once, and stays so whoever takes it on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow.test_fusion import RESIDUAL, on
from tpusim import Workload, load_hardware, load_workload, simulate
from tpusim.api.asked import asked_for
from tpusim.base.errors import CapacityError, InputError, Problem
from tpusim.flow.jobs import Job, alone, resolve
from tpusim.flow.simulation import run
from tpusim.machines.family import Machine
from tpusim.network.formats import NOTHING
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import Relu
from tpusim.study.sweep.points import load_sweep

GROUPED = Conv2d("grouped", 8, 6, 6, 8, (3, 3), padding=(1, 1), groups=8)
NET = Workload(
    "net",
    2,
    (GROUPED, Conv2d("plain", 8, 6, 6, 8, (1, 1)), Relu("relu", 8, 6, 6), Gemm("fc", 2, 4, 8)),
    lowerings={"fc": "explicit"},  # type: ignore[arg-type]
)
TINY = load_hardware("tiny_4x4", ["mapping.search=estimate"])


@pytest.mark.parametrize(
    ("lowering", "asked", "found"),
    [
        (None, "channel_first", ["vector", "channel_first", "vector_ops", "explicit"]),
        ("channel_last", "channel_last", ["channel_last", "channel_last", "vector_ops", "explicit"]),
        ("auto", "auto", ["auto", "auto", "vector_ops", "explicit"]),
        ("auto,p*=explicit,fc=channel_last", "auto", ["auto", "explicit", "vector_ops", "channel_last"]),
        ("*=fft,grouped=vector", "channel_first", ["vector", "fft", "vector_ops", "fft"]),
    ],
)
def test_each_layer_has_the_lowering_that_counts(lowering: str | None, asked: str, found: list[str]) -> None:
    jobs = resolve(NET, TINY, lowering)
    assert (jobs.lowering, [job.lowering for job in jobs.each]) == (asked, found)
    assert [job.layer for job in jobs.each] == [*jobs.work.layers]
    assert {job.batch for job in jobs.each} == {NET.batch}


@pytest.mark.parametrize("lowering", [None, "auto", "explicit", "auto,b=channel_last"])
@pytest.mark.parametrize("machine", [on(), on("none"), load_hardware("v100")])
def test_what_is_settled_stays_so(lowering: str | None, machine: Machine) -> None:
    """Resolved again as it runs, a workload has the same jobs; so has each of them by itself."""
    jobs = resolve(RESIDUAL, machine, lowering)
    again = resolve(jobs.work, machine, jobs.lowering)
    assert again.work == jobs.work
    assert [job[:3] for job in again.each] == [job[:3] for job in jobs.each]
    one = jobs.each[0]
    assert (
        one.alone(machine).each
        == alone(one.layer, one.batch, machine, one.lowering).each
        == (one._replace(where=None),)
    )


def test_some_jobs_run_as_they_do_among_all() -> None:
    jobs = resolve(RESIDUAL, on())
    every = {layer.name: layer.cycles for layer in run(jobs, check=False).layers}
    some = jobs.picked("b..")
    assert [job.layer.name for job in some.each] == [layer.name for layer in some.work.layers] == ["b", "c"]
    assert {layer.name: layer.cycles for layer in run(some, check=False).layers} == {name: every[name] for name in "bc"}
    assert jobs.picked("*") is jobs


def test_python_and_the_command_run_the_same_jobs() -> None:
    """A machine that runs numbers of a type fuses for these."""
    machine = load_hardware("tpu_v6e", ["sequencer.fusion=results", "mapping.search=estimate"])
    jobs = resolve(RESIDUAL, machine, dtype="int8")
    assert jobs.machine == machine.of_type("int8") != jobs.hardware == machine
    ours, theirs = run(jobs, check=False), simulate(RESIDUAL, machine, dtype="int8", check=False)
    assert ours.hardware == theirs.hardware == machine.to_dict()
    assert [layer.cycles for layer in ours.layers] == [layer.cycles for layer in theirs.layers]


def test_an_error_about_an_own_lowering_names_its_place() -> None:
    def refused(where: str | None) -> str:
        with pytest.raises(CapacityError) as error, Job(GROUPED, 2, "vector", where).placed():
            raise CapacityError(Problem("no room", "layer grouped"))
        return str(error.value)

    assert refused(None) == "layer grouped: no room"
    assert refused("net.yaml:3: layers[0].lowering") == "net.yaml:3: layers[0].lowering: layer grouped: no room"


@pytest.mark.parametrize("lowering", ["explcit", "x*=fft", "auto,explicit", "", 5])
def test_a_lowering_that_is_none_is_refused_before_anything_is_fused(lowering: str) -> None:
    with pytest.raises(InputError):
        resolve(RESIDUAL, on(), lowering, watch=lambda *_: pytest.fail("timed"))


def test_nothing_is_lowered_while_files_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.machines.tpu.family.Tpu.lowered", lambda *_: pytest.fail("lowered"))
    asked = asked_for("tiny", "tiny_4x4", 2, ["sequencer.fusion=results"], NOTHING)
    assert (asked.work, asked.machine.name) == (load_workload("tiny", batch=2), "tiny_4x4")


def test_points_share_the_jobs_that_no_machine_changes(tmp_path: Path) -> None:
    """A sweep may have a hundred thousand points."""
    (tmp_path / "few.yaml").write_text(
        "name: few\nhardware: tiny_4x4\nworkloads: [tiny]\nbatch: 2\n"
        "axes: {array.size: [2, 4], sequencer.fusion: [none, results], lowering: [explicit]}\n"
    )
    small, fused, large, _ = load_sweep(tmp_path / "few.yaml").points
    assert small.jobs.each is large.jobs.each is not fused.jobs.each
    assert small.jobs.hardware != large.jobs.hardware
