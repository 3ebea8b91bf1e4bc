"""Steps of training and tokens of pods held against what somebody measured.

A row of the table says which network ran on which chips, how it was shared, and how long a step took, or a token. It is
simulated as a user would: the network is loaded for the mesh, and its share runs on the slice. Nothing is fitted on
steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, fsum, log, prod
from typing import Any

from tpusim.flow.chip_steps.network import exchanges_of, step_of
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.simulation import run
from tpusim.machines.family import load_hardware
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.network.formats import ModelOptions
from tpusim.network.workload import FORWARD, NONE, Workload
from tpusim.network.workload_file import open_workload, run_batch, shared
from tpusim.result.records import LayerResult
from tpusim.study.validation.cases import MeasuredRow, NumberSet, Omission, Row, UnclearError, cached, rows
from tpusim.study.validation.comparison import ComparedCase, Comparison
from tpusim.study.worker_processes import InputProgress, on_all_processors

PODS = "pods"
"""Name for all sets of pods; the name of each begins with it."""
_TABLE = "multichip_measured"

_BLOCKS = "embedding", "feed_forward_sum*", "last_norm"
"""What training keeps of each block, whatever else: what goes into the next."""
_QUERY, _KEY, _VALUE = ("query_[0-9]*",), ("key_[0-9]*",), ("value_[0-9]*",)
_VALUES: Mapping[str, tuple[str, ...]] = {
    "decoder_layer_input": _BLOCKS[:2], "query_proj": _QUERY, "q": _QUERY, "key_proj": _KEY, "k": _KEY,
    "value_proj": _VALUE, "v": _VALUE, "context": ("attention_*.flash",), "out_proj": ("projection_*",),
    "mlpwo": ("down_*",),
}  # fmt: skip
"""Layers of `maxtext` by the names that MaxText gives what it keeps."""
_REMAT: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": ((), ()),
    "minimal": ((*_QUERY, *_KEY, *_VALUE, "projection_*", "gate_*", "up_*", "down_*"), ()),
    "qkv_proj_offloaded": ((*_QUERY, *_KEY, *_VALUE), (*_QUERY, *_KEY, *_VALUE)),
}
"""By MaxText's name of a policy what it keeps beside blocks, and what of all goes to the host."""
_TYPES = {"bf16": "bf16", "fp8_full": "f8", "fp8": "f8"}
_MACHINES = {"7x": "v7x"}
"""Generations that tables name otherwise than machines and slices."""
_CUBES = {8: "2x2x2", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
"""Slices of v4 whose sides a table does not tell."""
_MEMORY = "hbm.capacity=1024 GiB"
"""Rows that need more HBM than a chip has, by our count, run all the same, and are told."""
_UNFUSED = "llama3_8b"
"""Workload of a decoder like it, whose attention writes its scores to HBM."""


@dataclass(frozen=True)
class PodRun:
    """A network that chips share, as a user asks for it.

    Attributes:
        workload: a shipped name; `dims`: its sizes, `phase`: its phase.
        mesh: axes along which chips share it.
        batch: images, or sequences, of all chips.
        machine: the chip; `slice`: the slice, with what is set of it.
        dtype: type of the values.
        training: how it is trained; None: it is not.
        keep, offload: patterns of what stays for the way back, and of what goes to the host.
    """

    workload: str
    dims: tuple[tuple[str, int], ...]
    phase: str | None
    mesh: tuple[tuple[str, int], ...]
    batch: int
    machine: str
    slice: str
    slices: int
    dtype: str
    training: tuple[tuple[str, Any], ...] | None = None

    @property
    def chips(self) -> int:
        """All chips."""
        return prod(size for _, size in self.mesh)

    @property
    def share(self) -> PodRun:
        """What runs that differ in it alone have unlike layers of a chip; others differ in how many slices do alike."""
        slices = dict(self.mesh).get("data", 1)
        mesh = tuple(each for each in self.mesh if each[0] != "data")
        return replace(self, mesh=mesh, batch=self.batch // slices, slices=1) if self.slices > 1 else self


MeasuredPod = MeasuredRow[PodRun]
"""What ran, and the seconds that a step or a token took."""


@dataclass(frozen=True)
class ComparedPod(ComparedCase):
    """A row with our figure, and that of one number for its generation, as `roofline`.

    Attributes:
        parts: shares of our step's cycles by what the chip does.
        chips: all chips.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    chips: int = 0

    @property
    def rest(self) -> float:
        """What was measured beyond our figure: of a token that is served, the host's part and all that we err."""
        return self.theirs - self.ours


# ---- rows of the table


@cached
def measured_pods() -> tuple[list[MeasuredPod], list[Omission]]:
    """Return the rows that can be run, and those that cannot, with the reason."""
    found, left_out = list[MeasuredPod](), list[Omission]()
    for row in rows(_TABLE):
        if row["kind"] == "collective":
            continue
        read = _OF_FAMILIES.get(row["family"].partition("-")[0])
        seconds = _seconds(row)
        try:
            if read is None or seconds is None:
                raise UnclearError("no workload here is like it" if read is None else "it tells no time")
            found.append(read(row, seconds))
        except UnclearError as why:
            name = f"{row['id']}: {row['model']} on {row['chips']} {row['generation']}"
            left_out.append(Omission(name, None if seconds is None else seconds * 1e3, str(why)))
    return found, left_out


def _seconds(row: Row) -> float | None:
    if row["tpot_ms"]:
        return float(row["tpot_ms"]) / 1000
    return float(row["step_s"]) if row["step_s"] else None


def _generation(row: Row) -> str:
    return _MACHINES.get(row["generation"], row["generation"])


def _slice(row: Row) -> str:
    sides = re.match(r"\d+(x\d+)+", row["topology"])
    told = sides[0] if sides else _CUBES.get(int(row["chips"]) if row["generation"] == "v4" else 0)
    if told is None:
        raise UnclearError("the slice is not told")
    return f"{_generation(row)}_{told}"


def _sizes(row: Row) -> dict[str, int]:
    """Sizes of a gated decoder, by the names of its file."""
    columns = {
        "layers": "layers", "width": "d_model", "inner": "d_ff", "heads": "heads", "kv_heads": "kv_heads",
        "head": "head_dim", "vocabulary": "vocab",
    }  # fmt: skip
    if row["experts"]:
        raise UnclearError("it has experts; dense ones are asked for here")
    if not all(row[column] for column in columns.values()):
        raise UnclearError("its sizes are not told")
    if any(row["model"].startswith(other) for other in ("gpt", "gemma")):
        raise UnclearError("its feed-forward part, or its attention, is not that of a gated decoder")
    return {name: int(row[column]) for name, column in columns.items()}


def _named(row: Row, mesh: Mapping[str, int]) -> str:
    axes = " ".join(f"{name}={size}" for name, size in mesh.items())
    type_of = f" {row['precision']}" if row["precision"] not in ("bf16", "") else ""
    return f"{row['model']}{type_of}, {int(row['chips']):,} {row['generation']}, {axes}"


def _mesh(row: Row) -> dict[str, int]:
    """The axes of a row of MaxText, of which one takes the chips that the others leave."""
    chips, slices = int(row["chips"]), int(row["slices"])
    told = dict(re.findall(r"(?:ici_|dcn_)?(\w+)=(\d+|all|rest)", row["parallelism"]))
    known = {name: int(size) for name, size in told.items() if size.isdigit() and name != "data"}
    if not {*told} <= {"fsdp", "tensor", "data", "fsdp_transpose"} or "fsdp" not in told:
        raise UnclearError(f"how it is shared is not told: {row['parallelism'] or 'nothing'}")
    known["fsdp"] = chips // slices // known.get("tensor", 1)
    data = {"data": slices} if slices > 1 else {}
    mesh = {**data, "fsdp": known["fsdp"], **({"tensor": known["tensor"]} if "tensor" in known else {})}
    if prod(mesh.values()) != chips:
        raise UnclearError(f"{row['parallelism']} are not {chips} chips")
    return mesh


def _training(remat: str, has_host: bool) -> tuple[tuple[str, Any], ...]:
    """What MaxText keeps by a policy, in the words of a training step."""
    if remat in _REMAT:
        keep, offload = _REMAT[remat]
    elif said := re.findall(r"(offload|keep)(?: to host:)? ([\w+]+)", remat):
        values = {word: [each for name in names.split("+") for each in _VALUES[name]] for word, names in said}
        offload = tuple(values.get("offload", ()))
        keep = (*values.get("keep", ()), *offload)
    else:
        raise UnclearError(f"what is kept for the way back is not told: {remat or 'nothing'}")
    every = tuple(dict.fromkeys((*_BLOCKS, *keep)))
    return ("keep", every), ("offload", (offload if has_host else ()) or NONE), ("optimizer", "adam")


def _of_maxtext(row: Row, seconds: float) -> MeasuredPod:
    sizes, mesh, generation = _sizes(row), _mesh(row), _generation(row)
    # MaxText's configuration of v4 is older than its kernels of attention, which those of others name.
    fused = row["generation"] != "v4"
    dims, place = {**sizes, "context": int(row["seq"])}, _slice(row)
    has_host = load_slice(place).interconnect.host is not None
    away = "" if has_host or "offload" not in row["remat"] else ", all kept on chip"
    asked = PodRun(
        "maxtext" if fused else _UNFUSED, tuple(dims.items()), None, tuple(mesh.items()),
        round(float(row["global_batch"])), f"tpu_{generation}", place, int(row["slices"]),
        _TYPES[row["precision"]], _training(row["remat"], has_host),
    )  # fmt: skip
    return MeasuredRow(_named(row, mesh) + away, f"{PODS}_{generation}", asked, seconds)


def _of_mlperf(row: Row, seconds: float) -> MeasuredPod:
    if not row["model"].startswith("resnet50"):
        raise UnclearError("of MLPerf's networks ResNet-50 is asked for here")
    chips, batch = int(row["chips"]), int(row["global_batch"])
    mesh, generation = {"data": chips}, _generation(row)
    asked = PodRun(
        "resnet50", (), None, tuple(mesh.items()), batch, f"tpu_{generation}", _slice(row), 1, "bf16",
        (("optimizer", "sgd"),),
    )  # fmt: skip
    return MeasuredRow(f"ResNet-50, {chips:,} {row['generation']}, batch {batch:,}", f"{PODS}_resnet50", asked, seconds)


def _of_serving(row: Row, seconds: float) -> MeasuredPod:
    """A token of all sequences that are under way: as many as tokens come in the time of one."""
    sizes, told = _sizes(row), dict(re.findall(r"(\w+)=(\d+)", row["parallelism"]))
    if {*told} != {"tensor"} or not row["samples_s"]:
        raise UnclearError("how it is shared, or how many tokens come, is not told")
    prompt, made = (int(each) for each in row["seq"].split("+"))
    batch = max(1, round(float(row["samples_s"]) * seconds))
    mesh, generation = {"tensor": int(told["tensor"])}, _generation(row)
    dims = {**sizes, "context": prompt + made // 2}
    asked = PodRun(
        _UNFUSED, tuple(dims.items()), "decode", tuple(mesh.items()), batch, f"tpu_{generation}", _slice(row), 1,
        _TYPES[row["precision"]],
    )  # fmt: skip
    name = f"{row['model']}, {row['chips']} {row['generation']}, {batch} at once behind {prompt:,}"
    return MeasuredRow(name, f"{PODS}_decode", asked, seconds)


_OF_FAMILIES = {"maxtext": _of_maxtext, "mlperf": _of_mlperf, "sglang": _of_serving, "vllm": _of_serving}

_ABOUT = {
    "v4": "steps of MaxText on TPU v4", "v5e": "steps of MaxText on TPU v5e", "v5p": "steps of MaxText on TPU v5p",
    "v6e": "steps of MaxText on TPU v6e, with what goes to the host", "v7x": "steps of MaxText on TPU 7x",
    "resnet50": "steps of ResNet-50 for MLPerf, evaluation included",
    "decode": "time of a token of language models that are served, the host's part included",
}  # fmt: skip


@cached
def pod_sets() -> dict[str, NumberSet]:
    """The sets by their names: steps by generation, and those of ResNet-50; time of a token."""
    found, left_out = measured_pods()
    names = [f"{PODS}_{each}" for each in _ABOUT if any(pod.group == f"{PODS}_{each}" for pod in found)]
    return {
        name: NumberSet(
            name, "measured", PODS, _ABOUT[name.removeprefix(f"{PODS}_")], "slices", (), unit="ms", lowering="",
            left_out=tuple(left_out) if name == names[0] else (),
        )
        for name in names
    }  # fmt: skip


# ---- simulations


def workload_for(asked: PodRun) -> Workload:
    """Load one chip's share of a network. Raises InputError."""
    options = ModelOptions(
        dims=dict(asked.dims), phase=asked.phase, mesh=dict(asked.mesh),
        training=None if asked.training is None else dict(asked.training), batch=run_batch(asked.batch),
    )  # fmt: skip
    return shared(open_workload(asked.workload, options), asked.workload, options, asked.batch)


@dataclass(frozen=True)
class SimulatedPod:
    """A run that was simulated.

    Attributes:
        seconds: seconds of a step, or of a token.
        ideal: seconds that the multiplications of a step take at the peak, without those that are done again; of a
            token, that its weights and caches take through HBM at full rate.
        parts: shares of the step's cycles by what the chip does.
        too_large: whether a chip's share needs more HBM than it has, by our count.
    """

    seconds: float
    ideal: float
    parts: tuple[tuple[str, float], ...]
    too_large: bool


def simulated(changes: tuple[str, ...], runs: Sequence[PodRun]) -> list[SimulatedPod]:
    """Simulate runs whose chips do alike: their layers are timed once, where they are the same. Raises InputError."""
    found, known = list[SimulatedPod](), dict[object, tuple[LayerResult, ...]]()
    for asked in runs:
        own = [each for each in changes if not each.startswith("slice.")]
        hardware = load_hardware(asked.machine, own)
        assert isinstance(hardware, Hardware)
        of_slice = [each.removeprefix("slice.") for each in changes if each.startswith("slice.")]
        place = load_slice(asked.slice, [f"slices={asked.slices}", *of_slice] if asked.slices > 1 else of_slice)
        work = workload_for(asked)
        jobs = resolve(work, load_hardware(asked.machine, [*own, _MEMORY]), dtype=asked.dtype)
        alike = tuple((job.layer, job.batch, job.lowering) for job in jobs.each), jobs.work.riders
        if alike in known:
            made = exchanges_of(jobs, place)
            assert made
            step = step_of(jobs, known[alike], made, "event")
            held = found[-1].too_large
        else:
            result = run(jobs, check=False, slice=place)
            assert result.step
            known[alike], step = result.layers, result.step
            held = result.hbm_use is not None and result.hbm_use.need_bytes > (hardware.hbm.capacity_bytes or 0)
        parts = tuple((name, cycles / step.cycles) for name, cycles in step.parts.items())
        found.append(SimulatedPod(step.seconds, _ideal(jobs, hardware, asked), parts, bool(held)))
    return found


def _ideal(jobs: Jobs, hardware: Hardware, asked: PodRun) -> float:
    """The time that one number a generation is to be divided into."""
    work, phases = jobs.work, dict(jobs.work.phases)
    if asked.training is not None:
        macs = sum(each.macs(work.batch) for each in work.layers if phases.get(each.name) == FORWARD)
        return 3 * macs / hardware.macs_per_cycle / hardware.clock_hz
    read = sum(each.operands(work.batch) for each in work.layers if each.unit == "array")
    return read * hardware.element_bytes / hardware.hbm_bytes_per_s


def _wanted(sets: Sequence[NumberSet]) -> list[MeasuredPod]:
    asked, _ = measured_pods()
    return [pod for pod in asked if any(pod.group == each.name for each in sets)]


def shared_runs(sets: Sequence[NumberSet]) -> list[tuple[PodRun, ...]]:
    """Return the runs of the rows of sets, those together that share their layers."""
    shares: dict[PodRun, list[PodRun]] = {}
    for pod in _wanted(sets):
        shares.setdefault(pod.asked.share, []).append(pod.asked)
    return [tuple(runs) for runs in shares.values()]


def compare_pods(sets: Sequence[NumberSet], changes: Sequence[str], progress: InputProgress) -> list[Comparison]:
    """Simulate the rows of the sets, with further overrides of every machine, and of slices where they begin so.

    Raises InputError.
    """
    wanted, groups = _wanted(sets), shared_runs(sets)
    outcomes = on_all_processors(partial(simulated, tuple(changes)), groups, lambda runs: runs[0].slice, progress)
    made = {run: found for runs, every in outcomes.items() for run, found in zip(runs, every, strict=True)}
    return [
        Comparison(
            replace(each, asked=tuple(changes)), tuple(_rows([pod for pod in wanted if pod.group == each.name], made))
        )
        for each in sets
    ]


def _rows(pods: Sequence[MeasuredPod], made: Mapping[PodRun, SimulatedPod]) -> Iterator[ComparedPod]:
    for pod in pods:
        own = made[pod.asked]
        # One number of a generation, fitted on its other rows, if it has some.
        alike = [each for each in pods if each.asked.machine == pod.asked.machine]
        others = [each for each in alike if each is not pod] or alike
        slower = exp(fsum(log(each.took / made[each.asked].ideal) for each in others) / len(others))
        name = f"{pod.name} (more HBM than there is)" if own.too_large else pod.name
        figures = (own.seconds * 1e3, pod.took * 1e3, own.ideal * slower * 1e3)
        yield ComparedPod(name, *figures, False, parts=dict(own.parts), chips=pod.asked.chips)
