"""Which lowering a layer takes: its own, that of the run, or, by auto, the fastest."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.agreement import test_second_lowering as second
from tests.agreement.test_agreement import suppose
from tests.strategies import cases, conv, machine, machines, small_layers
from tests.written import by_hand
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError, CheckFailed, InputError
from tpusim.cli import app as cli
from tpusim.flow.jobs import Job
from tpusim.flow.lowerings import AUTO, candidates, known, prepared
from tpusim.flow.need import AskedJob, need_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.family import PASS_BYTES
from tpusim.machines.tpu.lowering import drafts
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.lowering.vector_ops import VECTOR_OPS
from tpusim.machines.tpu.program.program import ExplainedProgram, StepCounts
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.load import parse_result
from tpusim.study.explain import bottleneck
from tpusim.study.explain.relaxation import LARGER

FIRST, OTHER = "channel_first", second.NAME
LAYER = conv(5, 6, 7, 3, stride=2, padding=1)
MACHINE = machine(8, 4, capacity_words=400)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """A second lowering, and no other."""
    # All at once: what is taken out one by one comes back in another order.
    every, LOWERINGS.data = LOWERINGS.data, {FIRST: LOWERINGS[FIRST], OTHER: by_hand(OTHER, second.lower)}
    yield
    LOWERINGS.data = every


def cycles(layer: Op, hardware: Hardware, lowering: str, batch: int = 3) -> int:
    return simulate(Workload("net", batch, (layer,)), hardware, lowering=lowering, check=False).total.cycles


# ---- a layer's own


FILE = """\
name: net
layers:
  - {name: a, op: conv2d, in_channels: 3, in_height: 6, in_width: 6, out_channels: 5, kernel: 3}
  - {name: b, op: conv2d, in_channels: 3, in_height: 6, in_width: 6, out_channels: 5, kernel: 3, lowering: OTHER}
  - {name: c, op: gemm, m: batch, n: 3, k: 4, count: 2, lowering: OTHER}
""".replace("OTHER", OTHER)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(FILE)
    return tmp_path


def taken(work: Workload, lowering: str = FIRST) -> dict[str, str]:
    result = simulate(work, load_hardware("tiny_4x4"), lowering=lowering)
    assert result.correct
    return {layer.name: layer.lowering for layer in result.layers}


def test_a_layers_own_lowering_wins(desk: Path) -> None:
    work = load_workload("net.yaml", batch=2)
    assert taken(work) == {"a": FIRST, "b": OTHER, "c_1": OTHER, "c_2": OTHER}
    assert taken(work, OTHER) == dict.fromkeys(("a", "b", "c_1", "c_2"), OTHER)
    assert taken(work.with_layers(lambda layer: layer.name != "b")) == {"a": FIRST, "c_1": OTHER, "c_2": OTHER}


def test_the_heading_of_a_run_names_no_lowering_that_no_layer_took(desk: Path) -> None:
    shown = CliRunner().invoke(cli.app, ["run", "net.yaml", "--hardware", "tiny_4x4", "--batch", "2"]).stdout
    assert f": {FIRST} lowering, " in shown.splitlines()[0]
    shown = CliRunner().invoke(cli.app, ["run", "net.yaml", "--hardware", "tiny_4x4", "--layers", "b"]).stdout
    assert f": each layer by a lowering of its own (asked: {FIRST}), " in shown.splitlines()[0]
    assert f"Lowered by {OTHER}: all layers." in shown


@pytest.mark.parametrize("option", [[], ["--lowering", FIRST]])
def test_explain_says_that_a_layers_own_lowering_goes_first(
    option: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottleneck, "relaxations", lambda setup: [LARGER])

    def told(layer: str) -> str:
        words = ["explain", "net.yaml", "--layer", layer, "--hardware", "tiny_4x4", "--batch", "2", *option]
        words += ["--set", "mapping.search=estimate"]
        return " ".join(CliRunner().invoke(cli.app, words).stdout.split())

    own = f"How it is lowered, by {OTHER} - what the workload says of this layer, which goes before --lowering"
    assert own in told("b")
    assert "goes before" not in told("a")


def test_two_layers_of_one_shape_share_no_program_by_different_lowerings(desk: Path) -> None:
    work, hardware = load_workload("net.yaml", batch=2), load_hardware("tiny_4x4")
    a, b, *_ = simulate(work, hardware).layers
    assert a.cycles == cycles(work.layers[0], hardware, FIRST, batch=2)
    assert b.cycles == cycles(work.layers[0], hardware, OTHER, batch=2) != a.cycles
    assert work.layers[0].shape_key == work.layers[1].shape_key


def test_in_python_layers_are_named() -> None:
    layers = (LAYER, replace(LAYER, name="other"))
    assert taken(Workload("net", 2, layers, lowerings={"other": OTHER})) == {"conv": FIRST, "other": OTHER}
    with pytest.raises(InputError, match='there is no layer "othre"; did you mean other'):
        Workload("net", 2, layers, lowerings={"othre": OTHER})
    with pytest.raises(InputError, match="layer other: unknown lowering 'mine'"):
        simulate(Workload("net", 2, layers, lowerings={"other": "mine"}), MACHINE)


def test_patterns_of_names_give_layers_lowerings(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last that fits counts, before what the file says; what is alone is for all others."""
    work = load_workload("net.yaml", batch=2)
    assert taken(work, f"c*={FIRST}") == {"a": FIRST, "b": OTHER, "c_1": FIRST, "c_2": FIRST}
    assert taken(work, f"{OTHER}, c*={FIRST}, c_2={OTHER}") == {"a": OTHER, "b": OTHER, "c_1": FIRST, "c_2": OTHER}
    monkeypatch.setitem(LOWERINGS, "vector_ops", VECTOR_OPS)
    monkeypatch.setattr(bottleneck, "relaxations", lambda setup: [LARGER])
    every = f"--lowering=b={FIRST},{OTHER}"
    Path("net.yaml").write_text(FILE + "  - {name: p, op: relu, channels: 3}\n")
    done = CliRunner().invoke(
        cli.app, ["run", "net.yaml", "--hardware", "tiny_4x4", "--json", "-", every, "--layers=[bp]"]
    )
    assert [each["lowering"] for each in json.loads(done.stdout)["layers"]] == [FIRST, "vector_ops"], done.stderr
    for command in ("explain", "trace"):
        part = "--layer" if command == "explain" else "--layers"
        words = [command, "net.yaml", "--hardware", "tiny_4x4", part, "b", every, "--set", "mapping.search=estimate"]
        told = CliRunner().invoke(cli.app, words)
        assert told.exit_code == 0, told.stderr
        assert "the workload says" not in told.stdout
        assert command == "trace" or f"How it is lowered, by {FIRST}" in told.stdout


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (f"d*={OTHER}", f"lowering d*={OTHER}: no layer of net matches 'd*'; its layers are a, b, c_1, c_2, p"),
        (f"c1={OTHER}", "no layer of net matches 'c1'; did you mean c_1?"),
        ("a=channel_frist", "lowering a=channel_frist: unknown lowering 'channel_frist'; did you mean channel_first?"),
        (f"p={OTHER}", f"lowering p={OTHER}: relu is lowered by vector_ops; leave it out"),
        (f"{FIRST},{OTHER}", f"{FIRST} and {OTHER} are for all layers; give one, and others by"),
        ("frist,a=auto", "unknown lowering 'frist'"),
        *(
            (empty, f"lowering: {empty!r} has an empty name; write one")
            for empty in ("", " ", ",", "auto,", "auto,,a=auto")
        ),
    ],
)
def test_patterns_that_say_nothing_are_refused(
    asked: str, says: str, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOWERINGS, "vector_ops", VECTOR_OPS)
    Path("net.yaml").write_text(FILE + "  - {name: p, op: relu, channels: 3}\n")
    with pytest.raises(InputError) as error:
        simulate(load_workload("net.yaml", batch=2), MACHINE, lowering=asked)
    assert says in str(error.value)
    done = CliRunner().invoke(cli.app, ["run", "net.yaml", "--lowering", asked])
    assert (done.exit_code, says in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize("command", ["run", "explain --layer a", "trace --layers a -o a.perfetto-trace", "sweep"])
def test_an_unknown_one_is_told_once_at_its_line(command: str, desk: Path) -> None:
    Path("net.yaml").write_text(FILE.replace(f"count: 2, lowering: {OTHER}", "count: 2, lowering: channel_frist"))
    Path("sweep.yaml").write_text("workloads: net.yaml\naxes: {batch: [1, 2]}\n")
    name, *options = command.split()
    done = CliRunner().invoke(cli.app, [name, "sweep.yaml" if name == "sweep" else "net.yaml", *options])
    assert done.exit_code == 2, done.output
    says = "net.yaml:5: layers[2].lowering: unknown lowering 'channel_frist'; did you mean channel_first? there is"
    assert says in " ".join(done.output.split())
    assert done.output.count("unknown lowering") == 1


def test_one_that_would_be_ignored_is_told_at_its_line(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, "vector_ops", VECTOR_OPS)
    pool = f"{{name: p, op: pool2d, kind: max, channels: 3, in_height: 6, in_width: 6, kernel: 2, lowering: {FIRST}}}"
    Path("net.yaml").write_text(f"name: net\nlayers:\n  - {pool}\n")
    done = CliRunner().invoke(cli.app, ["run", "net.yaml"])
    says = "net.yaml:3: layers[0].lowering: pool2d is lowered by vector_ops, not by channel_first; leave out"
    assert (done.exit_code, done.stderr.count(says)) == (2, 1), done.output


def test_what_it_refuses_is_told_at_its_line(desk: Path) -> None:
    """Where the run's refuses, the file has no line for it."""
    small = ["run", "net.yaml", "--hardware", "tiny_4x4", "--set", "vector_memory.capacity=64 B"]
    own = CliRunner().invoke(cli.app, [*small, "--layers", "b"]).stderr
    assert own.startswith("Error: net.yaml:4: layers[1].lowering: layer b: too small for"), own
    asked = CliRunner().invoke(cli.app, [*small, "--layers", "a", "--lowering", OTHER]).stderr
    assert asked.startswith("Error: layer a: too small for")


@pytest.mark.parametrize("value", ["3", "yes", "[channel_first]", "''", "null"])
def test_what_is_no_name_is_told_with_the_rest_of_the_file(value: str, desk: Path) -> None:
    Path("net.yaml").write_text(
        FILE.replace(f"lowering: {OTHER}}}\n  - {{name: c", f"lowering: {value}}}\n  - {{name: 5")
    )
    with pytest.raises(InputError) as error:
        load_workload("net.yaml")
    assert [str(each.where) for each in error.value.problems] == [
        "net.yaml:4: layers[1].lowering",
        "net.yaml:5: layers[2].name",
    ]


# ---- auto


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 4))])
@settings(max_examples=cases(1 / 6), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=small_layers(), batch=st.integers(1, 9), hardware=machines(8, st.sampled_from([1, 2, 4, 8])))
def test_auto_is_the_fastest_of_those_that_fit(part: int, layer: Op, batch: int, hardware: Hardware) -> None:
    """Of equals, the first."""
    suppose(layer.macs(batch) / hardware.pes < 200)
    found, refused = {}, list[CapacityError]()
    for name in LOWERINGS:
        try:
            found[name] = cycles(layer, hardware, name, batch)
        except CapacityError as error:
            refused.append(error)
    work = Workload("net", batch, (layer,))
    if not found:
        with pytest.raises(CapacityError) as told:
            simulate(work, hardware, lowering=AUTO)
        reasons = {problem.message for error in refused for problem in error.problems}
        assert {problem.message.partition(": ")[2] for problem in told.value.problems} == reasons
        return
    run = simulate(work, hardware, lowering=AUTO)
    assert run.correct
    assert (run.lowering, run.layers[0].lowering) == (AUTO, min(found, key=lambda name: found[name]))
    assert run.total.cycles == min(found.values())


def test_equals_go_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, OTHER, LOWERINGS[FIRST])
    assert simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=AUTO).layers[0].lowering == FIRST


def failing(error: Exception) -> Callable[[Op, int, Hardware], ExplainedProgram]:
    def lower(layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
        raise error

    return lower


@pytest.mark.parametrize("name", [FIRST, OTHER])
def test_what_does_not_fit_is_passed_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, name, by_hand(name, failing(CapacityError("needs a larger machine"))))
    (layer,) = simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=AUTO).layers
    assert {layer.lowering, name} == {FIRST, OTHER}


def test_where_none_fits_each_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOWERINGS:
        monkeypatch.setitem(LOWERINGS, name, by_hand(name, failing(CapacityError(f"too large for {name}"))))
    with pytest.raises(
        CapacityError,
        match=f"layer conv: by {FIRST}: too large for {FIRST}\nlayer conv: by {OTHER}: too large for {OTHER}",
    ):
        simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=AUTO)


@pytest.mark.parametrize("error", [InputError("wrong"), CheckFailed("wrong"), ZeroDivisionError("wrong")])
def test_nothing_else_is_passed_over(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOWERINGS, OTHER, by_hand(OTHER, failing(error)))
    with pytest.raises(type(error), match="wrong"):
        simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=AUTO)


def test_it_is_looked_for_once_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[str] = []

    def counted(layer: Op, batch: int, hardware: Hardware) -> ExplainedProgram:
        lowered.append(layer.name)
        return second.lower(layer, batch, hardware)

    monkeypatch.setitem(LOWERINGS, OTHER, by_hand(OTHER, counted))
    layers = (LAYER, replace(LAYER, name="again"), Gemm("fc", m=3, n=4, k=5), replace(LAYER, name="last"))
    simulate(Workload("net", 3, layers), MACHINE, lowering=AUTO)
    assert lowered == ["conv", "fc"]


def test_every_engine_proves_what_auto_takes() -> None:
    pytest.importorskip("numba")
    runs = [simulate(Workload("net", 3, (LAYER,)), MACHINE, lowering=AUTO, engine=each) for each in ("event", "both")]
    assert runs[0].layers == runs[1].layers


def test_memory_is_estimated_for_the_best_so_far_and_the_next() -> None:
    def asked(lowering: str) -> AskedJob:
        return AskedJob(Job(LAYER, 3, lowering), MACHINE)

    alone = [need_of(asked(name)) for name in LOWERINGS]
    together = need_of(asked(AUTO))
    most, least = sorted((each.program for each in alone), reverse=True)
    assert together.program == most + least // 2 > most
    assert together.values == alone[0].values


def test_the_estimate_is_about_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best so far is held while the next is lowered and timed; here the two are alike in size. The estimate counts
    the steps of a check, which takes them out of the rows.
    """
    layer, hardware = Gemm("many_passes", m=64, n=512, k=1024), load_hardware("tpu_v2", {"array.size": 16})
    monkeypatch.setitem(LOWERINGS, OTHER, LOWERINGS[FIRST])
    # The other would take the Program of the first.
    monkeypatch.setattr(drafts, "LONGEST", 0)
    estimate = need_of(AskedJob(Job(layer, 1, AUTO), hardware, check=False)).total
    tracemalloc.start()
    ready = prepared(layer, 1, hardware, AUTO)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ready.lowering == FIRST
    assert 0.15 < peak / estimate < 1.2


def test_a_candidate_that_does_not_fit_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(layer: Op, batch: int, hardware: Hardware) -> StepCounts:
        raise CapacityError("needs a larger machine")

    monkeypatch.setitem(LOWERINGS, OTHER, by_hand(OTHER, second.lower, refused))
    asked = AskedJob(Job(LAYER, 3, AUTO), MACHINE)
    assert need_of(asked) == need_of(asked._replace(job=Job(LAYER, 3, FIRST)))
    assert need_of(asked).program >= PASS_BYTES


def test_names() -> None:
    assert known() == (FIRST, OTHER, AUTO)
    assert candidates(AUTO) == (FIRST, OTHER)
    assert candidates(OTHER) == (OTHER,)


# ---- told


def test_results_say_which_and_older_ones_are_read() -> None:
    work = Workload("net", 3, (LAYER, replace(LAYER, name="other")), lowerings={"other": OTHER})
    run = simulate(work, MACHINE)
    assert parse_result(run.to_json()) == run
    held = run.to_dict()
    # Such a result is older than seals.
    del held["seal"]
    for layer in held["layers"]:
        del layer["lowering"]
    assert [layer.lowering for layer in parse_result(json.dumps(held)).layers] == [FIRST, FIRST]


@pytest.mark.parametrize(
    ("options", "told"),
    [([], False), (["--lowering", AUTO], True), (["--lowering", OTHER, "--layers", "[bc]*"], False)],
)
def test_the_table_has_a_column_where_that_is_a_question(options: list[str], told: bool, desk: Path) -> None:
    Path("net.yaml").write_text(FILE.replace(f", lowering: {OTHER}", ""))
    done = CliRunner().invoke(cli.app, ["run", "net.yaml", "--hardware", "tiny_4x4", *options, "--out", "out"])
    assert done.exit_code == 0, done.output
    assert ("lowered by: the lowering that made it passes." in " ".join(done.output.split())) == told
    assert ("Lowered by" in done.output) == told
    assert CliRunner().invoke(cli.app, ["report", "out"]).exit_code == 0
    assert ('"lowered by"' in Path("out/report.html").read_text()) == told


def test_shares_add_up(desk: Path) -> None:
    done = CliRunner().invoke(cli.app, ["run", "net.yaml", "--hardware", "tiny_4x4", "--batch", "2"])
    assert f"Lowered by {FIRST} 1 layer, " in done.output
    assert f"; {OTHER} 3 layers, " in done.output


# ---- sweeps


SWEEP = """\
name: swept
workloads: [net.yaml]
hardware: tiny_4x4
batch: 2
axes: {AXES}
"""


def swept(axes: str, code: int = 0) -> str:
    Path("sweep.yaml").write_text(SWEEP.replace("AXES", axes))
    done = CliRunner().invoke(cli.app, ["sweep", "sweep.yaml", "--workers", "1", "--out", "out"])
    assert done.exit_code == code, done.output
    return done.output


def rows(name: str) -> list[dict[str, str]]:
    with Path("out", f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("undrawn")
def test_an_axis_of_lowerings(desk: Path) -> None:
    Path("net.yaml").write_text(FILE.replace(f", lowering: {OTHER}", ""))
    swept("lowering: all")
    work, hardware = load_workload("net.yaml", batch=2), load_hardware("tiny_4x4")
    runs = {name: simulate(work, hardware, lowering=name, check=False) for name in known()}
    assert [row["lowering"] for row in rows("points")] == [*known()]
    assert [int(row["cycles"]) for row in rows("points")] == [run.total.cycles for run in runs.values()]
    told = [(row["lowering"], row["name"], row["lowered_by"]) for row in rows("layers")]
    assert told == [(name, each.name, each.lowering) for name, run in runs.items() for each in run.layers]
    assert "3 there already" in swept(f"lowering: [{AUTO}, {OTHER}, {FIRST}]")


@pytest.mark.usefixtures("undrawn")
def test_in_a_sweep_a_layers_own_lowering_wins(desk: Path) -> None:
    swept(f"lowering: [{FIRST}, {OTHER}]")
    assert [row["lowered_by"] for row in rows("layers")] == [FIRST, *[OTHER] * 7]
    work, hardware = load_workload("net.yaml", batch=2), load_hardware("tiny_4x4")
    totals = [simulate(work, hardware, lowering=name, check=False).total.cycles for name in (FIRST, OTHER)]
    assert [int(row["cycles"]) for row in rows("points")] == totals


@pytest.mark.usefixtures("undrawn")
def test_the_lowering_of_a_layer_may_be_an_axis(desk: Path) -> None:
    swept(f"'layers.[ab].lowering': [{OTHER}, {FIRST}], layers.c.count: [1, 3]")
    assert [row["lowered_by"] for row in rows("layers")] == [OTHER] * 8 + [FIRST, FIRST, OTHER] + [
        FIRST,
        FIRST,
        *[OTHER] * 3,
    ]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ("lowering: [channel_frist]", "axes.lowering: unknown lowering 'channel_frist'; did you mean channel_first?"),
        ("lowering: 3", f"axes.lowering: 3 is no axis; write all, or a list of {FIRST}, {OTHER}, {AUTO}"),
        ("layers.a.lowering: [x]", "axes.layers.a.lowering: unknown lowering 'x'"),
        ("lowerin: all", "did you mean lowering?"),
    ],
)
def test_axes_of_lowerings_are_checked(axes: str, says: str, desk: Path) -> None:
    assert says in " ".join(swept(axes, code=2).split())
