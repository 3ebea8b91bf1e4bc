"""Whole Programs as goldens: every step, field and wait of some hundred layers, lowered in every way that takes them.

A Program has three lines in the golden: what it is, a digest a field, and a trail with a character a step.
Where a Program differs, the test names the first step that does, and the fields whose digests do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.channels import ChannelProducts
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Add, Gelu, Mul, Relu, ScaleShift
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.moves import Slice, Transpose
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient
from tpusim.network.ops.rows import LayerNorm, LayerNormGradient, Lrn, Softmax

TRAIL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"
RELU = Relu("relu", 64, 14, 14)
INNER = Conv2d("inner", 64, 14, 14, 64, (3, 3), padding=(1, 1))
LAYERS: tuple[Op, ...] = (
    Conv2d("3x3", 64, 14, 14, 64, (3, 3), padding=(1, 1)),
    Conv2d("first", 3, 32, 32, 64, (7, 7), stride=(2, 2), padding=(3, 3)),
    Conv2d("thick", 320, 9, 9, 192, (3, 3), padding=(1, 1)),
    Conv2d("1x1", 256, 14, 14, 160, (1, 1), stride=(2, 2)),
    Conv2d("dilated", 64, 9, 9, 64, (3, 3), padding=(8, 8), dilation=(8, 8)),
    Conv2d("grouped", 64, 14, 14, 64, (3, 3), padding=(1, 1), groups=8),
    Conv2d("depthwise", 160, 14, 14, 160, (3, 3), padding=(1, 1), groups=160),
    Conv2d("7x7", 24, 20, 20, 32, (7, 7), padding=(3, 3)),
    Gemm("gemm", 256, 320, 384),
    ConvTranspose2d("up", 64, 7, 7, 48, (4, 4), stride=(2, 2), padding=(1, 1)),
    DeformConv2d("deformed", 32, 9, 9, 48, (3, 3), padding=(1, 1)),
    Fused("with relu", INNER, finish=(RELU,)),
    Fused("with all", INNER, adds=True, finish=(RELU,), bias=True),
    Fused("with bias", Gemm("g", 64, 96, 160), bias=True),
    Fused("with groups", Conv2d("c", 64, 9, 9, 64, (3, 3), padding=(1, 1), groups=4), adds=True),
    Add("add", 160, 28, 28),
    Pool2d("pool", "max", 160, 28, 28, (3, 3), stride=(2, 2), padding=(1, 1)),
    ScaleShift("scale", 160, 28, 28),
    Mul("mul", 40, 9, 9),
    Gelu("gelu", 64, 9, 9),
    Lrn("lrn", 40, 9, 9),
    Transpose("turned", 64, 9, 20),
    Slice("sliced", 64, 9, 20, axis="width", start=3, stop=17),
    Softmax("softmax", 300, 12),
    LayerNorm("norm", 768, 20),
    Pool2dChoice("choice", "max", 160, 28, 28, (3, 3), stride=(2, 2), padding=(1, 1)),
    Pool2dGradient("back", "max", 160, 28, 28, (3, 3), stride=(2, 2), padding=(1, 1)),
    ChannelProducts("sums", 160, 28, 28, centred=True),
    LayerNormGradient("norm back", 768, 20),
    FlashAttention("attention", heads=2, head=64, queries=200, kv_heads=1),
)
LARGE = Conv2d("large", 48, 96, 96, 192, (3, 3), padding=(1, 1))
"""With many blocks, under choices that other layers leave as they are."""
CHOICES = (
    (), ("mapping.loop_order=filter_major",), ("mapping.fetch=per_tap",), ("mapping.block_m=333",),
    ("mapping.multi_tile=dense",), ("mapping.loads=whole",), ("mapping.entry=relaid",), ("mapping.patch=window",),
    ("mapping.block.in_channels=16",), ("mapping.transformation=before",), ("mapping.transformation=on_chip",),
    ("mapping.rows=read_again",), ("mapping.search=simulate",),
)  # fmt: skip
MACHINES = ("tpu_v2", "tpu_v2_core", "tpu_v3_core", "tpu_v2_banked", "tpu_v2_hbm", "small")
SMALL = ("vector_memory.capacity=96 KiB",)
"""A machine whose vector memories take a layer in pieces."""
SOME = {
    "tpu_v2": slice(1, None, 2), "small": slice(0, None, 10), "tpu_v2_banked": slice(2, None, 10),
    "tpu_v2_hbm": slice(4, None, 10), "tpu_v3_core": slice(6, None, 10), "tpu_v2_core": slice(8, None, 10),
}  # fmt: skip
"""Layers of a quick run: of the first machine every other, of each other machine some of those between."""
SOME_CHOICES = {"tpu_v2_core": slice(1, None, 6), "small": slice(4, None, 6)}
"""Choices of the large layer in a quick run, other ones for each machine."""


def machine(name: str, *choices: str) -> Any:
    return load_hardware("tpu_v2", [*SMALL, *choices]) if name == "small" else load_hardware(name, [*choices])


Lowered = tuple[Op, int, tuple[str, ...]]
"""A layer, a batch, and choices of the machine's mapping."""


def lowered_on(name: str, some: bool = False) -> list[Lowered]:
    """Every layer on a machine, batch 1 and 8 by turns; on two, the large layer in every way.

    `some`: of all machines together each layer once, and a few ways of the large one, but for the search by simulation,
    which takes as long as all others.
    """
    asked = [(layer, (1, 8)[(at + len(name)) % 2], ()) for at, layer in enumerate(LAYERS)]
    chosen: list[Lowered] = []
    if name in SOME_CHOICES:
        chosen += [(LARGE, 8, choice) for choice in CHOICES]
        chosen += [(layer, 1, CHOICES[-2]) for layer in LAYERS if layer.op in ("softmax", "layer_norm")]
    if some:
        asked, chosen = asked[SOME[name]], chosen[SOME_CHOICES.get(name, slice(None))]
    return [*asked, *chosen]


def programs(name: str, some: bool = False) -> Iterator[tuple[str, Told]]:
    """Programs by every lowering of the layers on a machine."""
    for layer, batch, choice in lowered_on(name, some):
        hardware = machine(name, *choice)
        ways = ("channel_first", "explicit", "stride_phases", "indirect") if choice else LOWERINGS
        seen, kept = set[str](), list[Program]()
        for way in ways:
            try:
                program, _ = lowered(layer, batch, hardware, way)
            except CapacityError:
                continue
            if len(program.rows) > 6000 or any(program.rows == other.rows for other in kept):
                continue
            if (told := Told(program)).trail not in seen:
                seen.add(told.trail)
                kept.append(program)
                yield called(layer, batch, way, choice), told


def called(layer: Op, batch: int, way: str, choice: Sequence[str]) -> str:
    return " ".join((layer.name, str(batch), way, *choice))


class Told:
    """A Program as text, field by field of each step; what many steps share is written once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[int, tuple[Any, str]] = {}
        self.steps = [[self._field(step, name) for name in told_fields(step)] for step in program.rows]
        kinds = (type(step).__name__ for step in program.rows)
        whole = (f"{kind} {'|'.join(told)}" for kind, told in zip(kinds, self.steps, strict=True))
        self.trail = "".join(TRAIL[sha256(each.encode()).digest()[0] % 64] for each in whole)

    def __call__(self, value: Any) -> str:
        known = self._known.get(id(value))
        if known is None:
            # The goldens are older than scratch memories, and than narrow weights.
            text = "a function" if callable(value) else repr(value)
            text = text.replace(f", place={HBM}", "").replace(", packed=None", "")
            self._known[id(value)] = known = value, text
        return known[1]

    def _field(self, step: Step, name: str) -> str:
        value = getattr(step, name)
        return repr(tuple(sorted({*value}))) if name == "after" else self(value)


def told_fields(step: Step) -> list[str]:
    """The goldens are older than arrays with weights of their own, registers that words share, work on the way, words
    that hold fewer images than others, loop bodies, and sums that wait for one another.
    """
    later = "work", "fill", "body", "chain"
    return [each for each in _fields_of(type(step)) if each not in later or getattr(step, each)]


@cache
def _fields_of(kind: type[Step]) -> list[str]:
    return [each.name for each in fields(kind) if each.name not in {"array", "widened", "packed"}]


def digest(text: str, letters: int = 6) -> str:
    return sha256(text.encode()).hexdigest()[:letters]


def frozen(name: str, told: Told) -> str:
    """The three lines of a Program."""
    # A single layer has no paces.
    program, found = told.program, dict[str, list[str]]()
    for step, texts in zip(program.rows, told.steps, strict=True):
        for each, text in zip(told_fields(step), texts, strict=True):
            found.setdefault(f"{type(step).__name__}.{each}", []).append(text)
    whole = {
        each.name: [repr([(d.tensor, d.operand) for d in program.derived]) if each.name == "derived"
                    else told(getattr(program, each.name))]
        for each in fields(program) if each.name not in ("rows", "paces")
    }  # fmt: skip
    digests = (f"{field} {digest(' '.join(texts))}" for field, texts in {**whole, **found}.items())
    return f"{name}: {len(program.rows)} steps\n  {', '.join(digests)}\n  {told.trail}\n"


def difference(was: str, now: str) -> str:
    """Where a Program first differs, in words."""
    (name, *old), (_, *new) = was.splitlines(), now.splitlines()
    fields_of = [dict(each.rsplit(" ", 1) for each in lines[0].strip().split(", ")) for lines in (old, new)]
    changed = sorted(
        each for each in {*fields_of[0], *fields_of[1]} if fields_of[0].get(each) != fields_of[1].get(each)
    )
    steps = zip(old[1].strip(), new[1].strip(), strict=False)
    first = next((at for at, (one, other) in enumerate(steps) if one != other), min(map(len, (old[1], new[1]))) - 2)
    return f"{name}: from step {first} on; {', '.join(changed)}"


@pytest.mark.long
@pytest.mark.parametrize("name", MACHINES)
def test_no_step_moves_unseen(name: str, request: pytest.FixtureRequest) -> None:
    path = golden_of(name)
    now = {each.split(":")[0]: each for each in (frozen(*each) for each in programs(name))}
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(now.values()))
    was = stored(path)
    apart = [difference(was[each], now[each]) for each in now if each in was and was[each] != now[each]]
    apart += [f"{each}: there is no such Program any more" for each in was if each not in now]
    apart += [f"{each}: a new Program" for each in now if each not in was]
    assert not apart, "\n".join([f"{path} differs; if that is right, run with --update-golden", *apart])


def test_some_are_all_layers() -> None:
    """Each stands in the goldens of one machine."""
    assert sorted(layer.name for name in MACHINES for layer in LAYERS[SOME[name]]) == sorted(
        layer.name for layer in LAYERS
    )


@pytest.mark.parametrize("name", MACHINES)
def test_no_step_of_some_layers_moves_unseen(name: str) -> None:
    path = golden_of(name)
    was, now = stored(path), {each.split(":")[0]: each for each in (frozen(*each) for each in programs(name, True))}
    asked = {
        called(layer, batch, way, choice) for layer, batch, choice in lowered_on(name, some=True) for way in LOWERINGS
    }
    assert now.keys() == asked & was.keys()
    apart = [difference(was[each], now[each]) for each in now if was[each] != now[each]]
    assert not apart, "\n".join([f"{path} differs; if that is right, run with --update-golden", *apart])


def golden_of(name: str) -> Path:
    """A DRAM of banks takes the Programs of the pipe as they are."""
    return GOLDEN / "programs" / f"{name.removesuffix('_hbm')}.txt"


def stored(path: Path) -> dict[str, str]:
    """The three lines of each Program of a golden, by its name."""
    lines = path.read_text().splitlines(keepends=True)
    return {lines[at].split(":")[0]: "".join(lines[at : at + 3]) for at in range(0, len(lines), 3)}


def test_a_difference_is_named() -> None:
    was = frozen("x", next(programs("tpu_v2"))[1])
    now = was.replace(was.split("Fill.parts ")[1][:6], "000000")
    at = now.rindex("\n", 0, -1) + 3
    now = f"{now[: at + 7]}{'A' if now[at + 7] != 'A' else 'B'}{now[at + 8 :]}"
    assert difference(was, now).endswith("from step 7 on; Fill.parts")


Asked = tuple[str, int, str, tuple[tuple[str, str], ...]]
"""A network, its batch and machine, and how its layers lie together."""
EVERY = (*product(("overlap", "stay"), ("none", "results")),)
FEW = (("resnet18", 8, "tpu_v2", EVERY), ("bert_base", 1, "tpu_v2", (("stay", "results"),)))
MORE = (
    ("mobilenet_v2", 1, "tpu_v2_core", EVERY), ("googlenet", 8, "tpu_v2", EVERY), ("densenet121", 1, "tpu_v2", EVERY),
    ("bert_base", 1, "tpu_v2", EVERY),
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("networks", [pytest.param(FEW, id="few"), pytest.param(MORE, id="more")])
def test_cycles_of_layers_together(
    networks: Sequence[Asked], golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    """Layers that overlap, and outcomes that stay on chip, with fusion and without."""
    head = "network batch machine between_layers fusion: cycles, HBM bytes read, written, saved, digest of all layers"
    golden(f"together_{request.node.callspec.id}.txt", "\n".join((head, *together(networks), "")))


@pytest.mark.parametrize("way", [pytest.param(("overlap", "none"), marks=pytest.mark.long), ("stay", "results")])
def test_cycles_of_the_layers_of_a_network_together(way: tuple[str, str]) -> None:
    known = (GOLDEN / "together_few.txt").read_text().splitlines()
    (line,) = together([(*FEW[0][:3], (way,))])
    assert line in known


def together(networks: Sequence[Asked]) -> Iterator[str]:
    """A line for each way of each network."""
    for network, batch, name, ways in networks:
        work = load_workload(network, batch=batch, ops="all")
        for between, fusion in ways:
            hardware = load_hardware(name, [f"sequencer.between_layers={between}", f"sequencer.fusion={fusion}"])
            result = simulate(work, hardware, check=False)
            saved = sum(each.hbm_saved_bytes for each in result.layers)
            each = "".join(f"{layer.name} {layer.cycles} {layer.hbm_saved_bytes};" for layer in result.layers)
            total = result.total
            told = total.cycles, total.hbm_read_bytes, total.hbm_write_bytes, saved, digest(each, 12)
            yield f"{network} {batch} {name} {between} {fusion}: {', '.join(map(str, told))}"
