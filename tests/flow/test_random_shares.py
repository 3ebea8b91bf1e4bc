"""Random networks on random meshes: engines agree on their steps, whose parts add up, and no reader comes too early."""

from __future__ import annotations

from math import prod
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.strategies import cases
from tpusim import load_hardware
from tpusim.api.asked import asked_for, model_options
from tpusim.base.errors import InputError
from tpusim.flow.chip_steps.network import exchanges_of, step_of
from tpusim.flow.jobs import resolve
from tpusim.flow.simulation import layers_of, run
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.result.records import Result
from tpusim.result.rules import broken

PLACES = {2: "v5e_1x2", 4: "v5e_2x2", 8: "v5e_2x4"}
TINY = load_hardware("tiny_4x4", ["sequencer.fusion=results", "mapping.search=estimate"])


def random_network(random: Random) -> str:
    """A chain of products of sizes that all meshes part, with additions of what came before, and activations."""
    lines = ["name: net", "sizes: {inner: 16}", "shard: {inner: tensor}", "layers:"]
    maps = ["input"]
    for number in range(random.randint(1, 4)):
        n, name = random.choice(["inner", "8"]), f"product_{number}"
        more = ", m: batch, k: 8" if number == 0 else ""
        lines.append(f"  - {{name: {name}, op: gemm, n: {n}{more}}}")
        if random.random() < 0.4:
            lines.append(f"  - {{name: act_{number}, op: relu}}")
        if n == "8" and random.random() < 0.5 and len(maps) > 1:
            lines.append(f"  - {{name: sum_{number}, op: add, inputs: [{lines_name(lines)}, {maps[-1]}]}}")
        if n == "8":
            maps.append(lines_name(lines))
    return "\n".join(lines) + "\n"


def lines_name(lines: list[str]) -> str:
    return lines[-1].partition("name: ")[2].partition(",")[0]


def random_mesh(random: Random) -> dict[str, int]:
    mesh: dict[str, int] = {}
    for axis in random.sample(["data", "fsdp", "tensor"], random.randint(1, 3)):
        mesh[axis] = 2
    return mesh


@settings(max_examples=cases(0.06), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_steps_of_random_shares(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    file, mesh = tmp_path / "net.yaml", random_mesh(random)
    file.write_text(random_network(random))
    place = load_slice(PLACES[prod(mesh.values())], "overlap=none" if random.random() < 0.2 else [])
    options = model_options(mesh=mesh, training=random.random() < 0.5)
    try:
        asked = asked_for(str(file), TINY, 8, None, options, slice=place)
    except InputError:
        # Such as a step of training of a layer without a known gradient.
        assume(False)
    jobs = resolve(asked.work, asked.machine)
    holds(run(jobs, check=False, slice=place), place.overlap)
    made = exchanges_of(jobs, place)
    assert made is not None
    layers = layers_of(jobs)
    assert step_of(jobs, layers, made, "both") == step_of(jobs, layers, made, "event")


def holds(result: Result, overlap: str) -> None:
    step = result.step
    assert step is not None
    assert not [*broken(result)]
    every = sum(each.cycles for each in step.collectives)
    assert result.total.cycles <= step.cycles <= result.total.cycles + every
    assert overlap != "none" or step.cycles == result.total.cycles + every
    by_name = {each.name: each for each in step.collectives}
    assert len(by_name) == len(step.collectives)
