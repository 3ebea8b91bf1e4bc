"""Memory: what a run needs is estimated before it begins, and what this computer does not have is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from tests.covering import few
from tests.strategies import GENERAL, conv
from tpusim import load_hardware, load_workload, simulate
from tpusim.base import memory
from tpusim.base.errors import InputError
from tpusim.flow import need
from tpusim.flow.jobs import Job, resolve
from tpusim.flow.need import PROCESS_BYTES, AskedJob, Room, need_of, room_for
from tpusim.flow.numbers import INTEGERS, numbers_of
from tpusim.flow.recordings import recordings, trace
from tpusim.flow.simulation import shared
from tpusim.machines.family import Need
from tpusim.machines.tpu import event
from tpusim.machines.tpu.lowering.registry import drafts_of, lowered, planned_of
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


def asked(layer: Op, batch: int = 1, check: bool = True, engine: str = "event", **changes: Any) -> AskedJob:
    return AskedJob(Job(layer, batch, "channel_first"), load_hardware("tpu_v2", changes), engine, check)


def refused(monkeypatch: pytest.MonkeyPatch, layer: Op, free: float, batch: int = 1, **options: Any) -> str:
    """What the refusal of a layer says where so many bytes are free."""
    monkeypatch.setattr(need, "free_bytes", lambda: int(free))
    changes = options.pop("changes", {})
    with pytest.raises(InputError) as error:
        simulate(Workload("net", batch, (layer,)), load_hardware("tpu_v2", changes), **options)
    (problem,) = error.value.problems
    assert "\n" not in str(problem)
    return str(problem)


@pytest.mark.parametrize("lowering", few(2, GENERAL))
@pytest.mark.parametrize(
    "name", ["resnet50", *(pytest.param(each, marks=pytest.mark.long) for each in ("alexnet", "densenet121"))]
)
@pytest.mark.parametrize("size", [128, *(pytest.param(size, marks=pytest.mark.long) for size in (48, 16))])
def test_the_passes_are_known_before_a_layer_is_lowered(name: str, size: int, lowering: str) -> None:
    hardware, work = load_hardware("tpu_v2", {"array.size": size}), load_workload(name, batch=2)
    for layer in {layer.shape_key: layer for layer in work.layers[::5]}.values():
        drafts = drafts_of(layer, 2, hardware, lowering)
        for draft in drafts:
            (program, _), planned = draft.lower(), draft.planned
            assert planned.passes == len(program.streams)
            transfers = sum(isinstance(step, Transfer) for step in program.rows)
            # The first load of each kind comes in smaller pieces.
            assert transfers - 16 <= planned.transfers <= 1.5 * transfers
        # Each may be lowered, so what a layer needs is told by the longest.
        longest, ways = planned_of(layer, 2, hardware, lowering)
        assert ways == len(drafts)
        assert longest.passes == max(draft.planned.passes for draft in drafts)


@pytest.mark.parametrize(
    ("layer", "batch", "changes"),
    [
        pytest.param(Gemm("many_passes", m=64, n=512, k=1024), 1, {"array.size": 16}, marks=pytest.mark.long),
        (Gemm("one_pass", m=16, n=2**13, k=16), 1, {"array.size": 16}),
        pytest.param(conv(256, 14, 256, 3, padding=1, groups=256), 8, {}, marks=pytest.mark.long),
        (conv(16, 28, 16, 3, padding=1), 8, {"array.size": 16, "vector_memory.capacity": "2 KiB"}),
    ],
    ids=["many passes", "one pass", "depthwise", "walks"],
)
def test_the_estimate_is_about_what_a_program_takes(layer: Op, batch: int, changes: dict[str, Any]) -> None:
    hardware = load_hardware("tpu_v2", changes)
    estimate = need_of(asked(layer, batch, check=False, **changes)).total
    # What is imported and compiled on the way is no part of a Program.
    event.run(lowered(conv(4, 4, 4, 1), 1, hardware, "channel_first")[0], hardware)
    tracemalloc.start()
    program, _ = lowered(layer, batch, hardware, "channel_first")
    timing = event.run(program, hardware)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert timing.cycles
    # Where moves are alike, a Program takes less than the estimate, which knows numbers of steps and no more.
    assert 0.3 < peak / estimate < 1.2


@pytest.mark.parametrize(("dtype", "least"), few(1, [(INTEGERS, 0.5), ("f32", 0.3)]))
def test_the_estimate_is_about_what_a_check_takes(dtype: str, least: float) -> None:
    """Of real numbers few layers need all that an estimate allows for, such as the map in float64."""
    layer, hardware = conv(64, 56, 64, 3, padding=1), load_hardware("tpu_v2")
    tracemalloc.start()
    simulate(Workload("net", 8, (layer,)), hardware, dtype=dtype)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    estimate = need_of(asked(layer, 8)._replace(numbers=numbers_of(dtype, "any"))).total
    assert least < peak / estimate < 1.5


@pytest.mark.parametrize(("dtype", "size"), [("integers", 1), ("int8", 1 + 8), ("f32", 4 + 8 + 4), ("bf16", 4 + 8 + 4)])
def test_what_an_operand_takes(dtype: str, size: int) -> None:
    """A byte, or a real; in float64 for the reference; and where it rounds, its magnitude."""
    assert numbers_of(dtype, "any").operand_bytes == size


def test_too_many_images_say_how_many_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = conv(64, 224, 64, 3, padding=1)
    says = refused(monkeypatch, layer, 4e9, batch=2048)
    assert says.startswith(f"layer {layer.name}: ")
    assert "and 4.0 GB are free; batch 256 or no check would fit" in says
    assert need_of(asked(layer, 256)).total < 4e9 < need_of(asked(layer, 512)).total


def test_a_small_array_says_which_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """35 x 8457 x 2560 on single PEs: 22 million passes at least."""
    layer = Gemm("fc", m=35, n=2560, k=8457)
    says = refused(monkeypatch, layer, 4e9, changes={"array.size": 1}, check=False)
    assert "21,649,920 passes need about 32.5 GB of memory, and 4.0 GB are free" in says
    side = int(says.rpartition("array.size=")[2].removesuffix(" would fit"))
    fits, too_small = (asked(layer, check=False, **{"array.size": size}) for size in (side, side // 2))
    assert need_of(fits).total <= 4e9 < need_of(too_small).total


def test_where_nothing_would_fit_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, Gemm("fc", m=1, n=8, k=8), 10).endswith("; nothing like it would fit")


def test_the_register_engine_holds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = conv(64, 56, 64, 3, padding=1)
    assert need_of(asked(layer, engine="register")).total > need_of(asked(layer)).total
    assert need_of(asked(layer)).total > need_of(asked(layer, check=False)).total


def test_a_layer_that_cannot_fit_is_refused_before_any_is_simulated() -> None:
    work = load_workload("alexnet", batch=2)
    seen: list[str] = []
    with pytest.raises(InputError, match=f"layer {work.layers[0].name}: the smallest tiling needs"):
        simulate(
            work,
            load_hardware("tpu_v2", {"vector_memory.capacity": "1 KiB"}),
            watch=lambda layer, doing: seen.append(doing),
        )
    assert seen == []


@pytest.mark.parametrize(("spare", "alive_then", "made"), [(40, [1, 2, 1, 1], 3), (39, [1, 1, 1, 1], 4)])
def test_what_is_shared_is_let_go_after_its_last_layer(spare: int, alive_then: list[int], made: int) -> None:
    class Made:
        alive = made = 0

        def __init__(self) -> None:
            Made.alive += 1
            Made.made += 1

        def __del__(self) -> None:
            Made.alive -= 1

    layer, other = Gemm("a", m=1, n=2, k=3), Gemm("b", m=4, n=5, k=6)
    work = Workload("net", 1, (layer, other, replace(layer, name="c"), replace(other, name="d", m=7)))
    jobs = resolve(work, load_hardware("tpu_v2"))
    room = Room({job.kind: Need(20, 0) for job in jobs.each}, spare)
    alive = list(map(lambda _: Made.alive, shared(jobs, lambda _: Made(), room)))
    assert alive == alive_then
    assert (Made.alive, Made.made) == (0, made)


def test_little_memory_leaves_nothing_to_keep_nor_to_work_ahead_with(monkeypatch: pytest.MonkeyPatch) -> None:
    work, hardware = load_workload("tiny"), load_hardware("tpu_v2")
    jobs = resolve(work, hardware)
    plenty = room_for(jobs, "event", True)
    most = max(need.total for need in plenty.needs.values())
    monkeypatch.setattr(need, "free_bytes", lambda: most + PROCESS_BYTES)
    tight = room_for(jobs, "event", True)
    assert (tight.kept, tight.ahead) == (0, 0) < (plenty.kept, plenty.ahead)
    assert simulate(work, hardware).correct
    monkeypatch.setattr(need, "free_bytes", lambda: most + PROCESS_BYTES - 1)
    with pytest.raises(InputError, match="GB of memory"):
        room_for(jobs, "event", True)


@pytest.mark.long
@pytest.mark.long
def test_the_neediest_is_named_and_what_is_advised_fits_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    work, hardware, free = load_workload("resnet50", 8), load_hardware("tpu_v2", {"array.size": 1}), int(1.2e9)
    monkeypatch.setattr(need, "free_bytes", lambda: free)
    with pytest.raises(InputError) as error:
        simulate(work, hardware, check=False)
    says = str(error.value)
    side = int(says.rpartition("array.size=")[2].removesuffix(" would fit"))
    assert room_for(resolve(work, load_hardware("tpu_v2", {"array.size": side})), "event", False)
    with pytest.raises(InputError):
        room_for(resolve(work, load_hardware("tpu_v2", {"array.size": side // 2})), "event", False)


def test_traces_are_refused_before_they_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    work, hardware = load_workload("tiny"), load_hardware("tpu_v2")
    work = replace(work, layers=work.layers[:1])
    monkeypatch.setattr(need, "free_bytes", lambda: 10)
    for asked_for in (trace, recordings):
        with pytest.raises(InputError, match=r"GB of memory, and 0\.0 GB are free"):
            asked_for(resolve(work, hardware))


def test_free_memory_is_the_least_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, left in (("_free", [30]), ("_control_group", [20, 25]), ("_address_space", [])):
        monkeypatch.setattr(memory, name, lambda left=left: iter(left))
    assert memory.free_bytes() == 20


def test_a_control_group_counts_what_is_used(tmp_path: Any) -> None:
    for name, text in (
        ("memory.max", "1000\n"),
        ("memory.current", "700\n"),
        ("memory.stat", "anon 5\ninactive_file 50\n"),
    ):
        (tmp_path / name).write_text(text)
    assert list(memory._left(tmp_path, "memory.max", "memory.current", "inactive_file")) == [350]
    (tmp_path / "memory.max").write_text("max\n")
    assert list(memory._left(tmp_path, "memory.max", "memory.current", "inactive_file")) == []


def test_this_computer_has_some() -> None:
    assert 2**20 < memory.free_bytes() < 2**60


def test_the_command_takes_no_memory_for_threads_of_blas() -> None:
    code = "import sys, tpusim.__main__ as m, threadpoolctl as t\nsys.argv = ['tpusim', 'run', 'tiny']\n"
    code += "try: m.main()\nfinally: print([each['num_threads'] for each in t.threadpool_info()])"
    given = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.splitlines()[-1])) <= {1}
