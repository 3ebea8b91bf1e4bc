import pickle
import re
import subprocess
import sys
from fractions import Fraction
from io import BytesIO, TextIOWrapper
from math import ceil

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests import ROOT
from tests.strategies import LETTERS, cases
from tpusim import load_hardware
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.machines.tpu.description import FORM, Hardware
from tpusim.machines.tpu.sections import Array, Hbm, MappingPolicy, VectorMemory, VectorUnit

CONFIGS = ROOT / "configs"


@st.composite
def machines(draw):
    memory = {"word_elements": draw(st.integers(1, 64)), "element_bytes": draw(st.integers(1, 8))}
    return Hardware(
        name=draw(st.text(LETTERS, min_size=1, max_size=200).filter(lambda text: text.strip() and text.isprintable())),
        clock_hz=draw(st.integers(1, 10**11)),
        array=Array(
            rows=draw(st.integers(1, 65536)),
            cols=draw(st.integers(1, 65536)),
            weight_buffers=draw(st.integers(1, 2)),
        ),
        vector_memory=VectorMemory(**memory, capacity_bytes=draw(st.integers(64 * 8, 2**34))),
        vector_unit=VectorUnit(
            alus=draw(st.integers(1, 2**24)), stack_cycles=draw(st.fractions(0, 65536, max_denominator=10**6))
        ),
        hbm=Hbm(
            bandwidth_bytes_per_s=draw(st.integers(1, 10**15)),
            latency_ps=draw(st.integers(1, 10**9)),
            burst_bytes=draw(st.integers(1, 65536)),
        ),
        mapping=MappingPolicy(
            multi_tile=draw(st.just("auto") | st.integers(1, 65536)),
            loop_order=draw(st.sampled_from(["auto", "block_major", "filter_major"])),
            chunks=draw(st.sampled_from(["auto", "needed"])),
        ),
    )


def test_tpu_v2_is_table_ii_of_the_paper():
    tpu = load_hardware("tpu_v2")
    assert (tpu.array.rows, tpu.array.cols, tpu.clock_hz) == (128, 128, 700_000_000)
    assert tpu.vector_unit.alus == 256
    assert (tpu.vector_memory.word_elements, tpu.vector_memory.element_bytes) == (8, 4)
    assert tpu.lanes * tpu.vector_memory.capacity_bytes == 32 * 2**20
    assert tpu.hbm.bandwidth_bytes_per_s == 700 * 10**9
    assert tpu.mapping == MappingPolicy(multi_tile="auto", loop_order="auto")


def test_derived_numbers_of_tpu_v2():
    tpu = load_hardware("tpu_v2")
    assert (tpu.pes, tpu.lanes, tpu.word_bytes, tpu.capacity_words) == (16384, 128, 32, 8192)
    assert tpu.hbm_bytes_per_cycle == 1000
    assert tpu.latency_cycles == 33  # 46.2 ns at 700 MHz is 32.34 cycles


def test_tiny_4x4_is_fig_10_of_the_paper():
    tiny = load_hardware("tiny_4x4")
    assert (tiny.array.rows, tiny.array.cols, tiny.lanes) == (4, 4, 4)
    assert tiny.vector_memory.word_elements == 2
    assert (tiny.latency_cycles, tiny.hbm_bytes_per_cycle) == (7, 32)


def test_shipped_names():
    """Each machine has its row in the guide's table; a row may name several."""
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs" / "your_machine.md").read_text(), re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == [*shipped("configs")]


@pytest.mark.parametrize("name", shipped("configs"))
def test_every_shipped_number_has_its_source_on_the_line(name):
    for line in (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        value = line.split("#")[0].split(":", 1)[-1].strip()
        assert not value or line.startswith("name:") or "# " in line, line


def test_lanes_follow_the_longer_side():
    assert load_hardware("tpu_v2", ["array.rows=32"]).lanes == 128
    assert load_hardware("tpu_v2", ["array.cols=256"]).lanes == 256


def test_capacity_counts_whole_words():
    assert load_hardware("tiny_4x4", ["vector_memory.capacity=31 B"]).capacity_words == 3


@settings(max_examples=cases(1 / 2), deadline=None)
@given(machines())
def test_yaml_form_loads_back_equal(machine):
    assert Hardware.model_validate(machine.to_dict()) == machine
    text = yaml.safe_dump(machine.to_dict(), allow_unicode=True)
    assert load_from_stdin(text) == machine


@settings(deadline=None, max_examples=cases())
@given(machines())
def test_latency_cycles_is_the_exact_ceiling(machine):
    assert machine.latency_cycles == ceil(Fraction(machine.hbm.latency_ps, 10**12) * machine.clock_hz)


def load_from_stdin(text: str) -> Hardware:
    stdin = sys.stdin
    sys.stdin = TextIOWrapper(BytesIO(text.encode()))
    try:
        return load_hardware("-")
    finally:
        sys.stdin = stdin


def test_size_is_shorthand_in_a_file(tmp_path):
    text = (CONFIGS / "tpu_v2.yaml").read_text(encoding="utf-8")
    short = text.replace("  rows: 128 ", "  size: 64 ").replace("  cols: 128 ", "  # ")
    path = tmp_path / "short.yaml"
    path.write_text(short, encoding="utf-8")
    assert load_hardware(path).array == Array(rows=64, cols=64)
    # One side can still be overridden, and the whole replaced.
    assert load_hardware(path, ["array.rows=32"]).array == Array(rows=32, cols=64)
    assert load_hardware(path, ["array.size=16"]).array == Array(rows=16, cols=16)


def test_size_may_stand_beside_sides_that_agree():
    machine = load_hardware("tpu_v2", ["array.size=64", "array.rows=64"])
    assert machine.array == Array(rows=64, cols=64)


OF_TYPES = [
    (f"types.{name}.{field}={value}", lambda h, name=name, field=field: getattr(getattr(h.types, name), field), value)
    for name in ("f32", "bf16", "f16", "int8", "f8")
    for field, value in {
        "bytes": 1,
        "rate": 2,
        "weights_per_cycle": 8,
        "result_bytes": 4,
        "convert_cycles": 3,
        "convert_bytes": 2,
        "convert_weight_cycles": 7,
        "convert_result_cycles": 9,
        "widen": 2,
        "narrow": 1,
        "rounding": 4,
    }.items()
]


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("name=other", lambda h: h.name, "other"),
        ("clock=1 GHz", lambda h: h.clock_hz, 10**9),
        ("array.rows=256", lambda h: h.array.rows, 256),
        ("array.cols=256", lambda h: h.array.cols, 256),
        ("array.weight_buffers=1", lambda h: h.array.weight_buffers, 1),
        ("array.count=2", lambda h: h.array.count, 2),
        ("array.weights=own", lambda h: h.array.weights, "own"),
        ("array.streamed=all", lambda h: h.array.streamed, "all"),
        ("array.weights_per_cycle=2", lambda h: h.array.weights_per_cycle, 2),
        ("array.weights_rate=all", lambda h: h.array.weights_rate, "all"),
        ("array.elements_per_cycle=2", lambda h: (h.array.elements_per_cycle, h.macs_per_cycle), (2, 2 * 128 * 128)),
        ("array.pes_per_cycle=3", lambda h: (h.array.pes_per_cycle, h.skew), (3, 42)),
        ("array.size=64", lambda h: (h.array.rows, h.array.cols, h.lanes), (64, 64, 64)),
        ("vector_memory.capacity=1 MiB", lambda h: h.vector_memory.capacity_bytes, 2**20),
        ("vector_memory.word_elements=16", lambda h: h.vector_memory.word_elements, 16),
        ("vector_memory.ports=separate", lambda h: h.vector_memory.ports, "separate"),
        ("vector_memory.organization=banked", lambda h: h.banked, True),
        ("vector_memory.banks=96", lambda h: h.vector_memory.banks, 96),
        ("vector_memory.bank_ports=2", lambda h: h.vector_memory.bank_ports, 2),
        ("vector_memory.bank_capacity=64 KiB", lambda h: h.vector_memory.bank_capacity_bytes, 65536),
        ("vector_memory.bank_map=hwc", lambda h: h.vector_memory.bank_map, "hwc"),
        ("vector_memory.element_bytes=2", lambda h: h.vector_memory.element_bytes, 2),
        ("vector_unit.alus=512", lambda h: h.vector_unit.alus, 512),
        ("vector_unit.unpack_cycles=6", lambda h: h.vector_unit.unpack_cycles, 6),
        ("vector_unit.pack_cycles=14", lambda h: h.vector_unit.pack_cycles, 14),
        ("vector_unit.pack_cycles=13.4", lambda h: h.vector_unit.pack_cycles, Fraction(67, 5)),
        ("vector_unit.stack_cycles=3/4", lambda h: h.vector_unit.stack_cycles, Fraction(3, 4)),
        ("vector_unit.transpose_cycles=64", lambda h: h.vector_unit.transpose_cycles, 64),
        ("vector_unit.transpose_words=4", lambda h: h.vector_unit.transpose_words, 4),
        ("vector_unit.convert_cycles=21/5", lambda h: h.vector_unit.convert_cycles, Fraction(21, 5)),
        ("vector_unit.convert_bytes=2", lambda h: h.vector_unit.convert_bytes, 2),
        ("vector_unit.convert_weight_cycles=7", lambda h: h.vector_unit.convert_weight_cycles, 7),
        ("vector_unit.convert_result_cycles=19/2", lambda h: h.vector_unit.convert_result_cycles, Fraction(19, 2)),
        ("vector_unit.relayout_cycles=8", lambda h: h.vector_unit.relayout_cycles, 8),
        ("vector_unit.scalar_words=32", lambda h: h.vector_unit.scalar_words, 32),
        ("vector_unit.operand_cycles=1.75", lambda h: h.vector_unit.operand_cycles, Fraction(7, 4)),
        ("vector_unit.result_cycles=3", lambda h: h.vector_unit.result_cycles, 3),
        ("vector_unit.ready_cycles=9/2", lambda h: h.vector_unit.ready_cycles, Fraction(9, 2)),
        ("vector_unit.widen=3/2", lambda h: h.vector_unit.widen, Fraction(3, 2)),
        ("vector_unit.narrow=1/2", lambda h: h.vector_unit.narrow, Fraction(1, 2)),
        ("vector_unit.rounding=4", lambda h: h.vector_unit.rounding, 4),
        ("vector_unit.slots.loads=3", lambda h: h.vector_unit.slots.loads, 3),
        ("vector_unit.slots.stores=2", lambda h: h.vector_unit.slots.stores, 2),
        ("vector_unit.slots.lanes=64", lambda h: h.vector_unit.slots.lanes, 64),
        ("vector_unit.slots.register=32 B", lambda h: h.vector_unit.slots.register_bytes, 32),
        ("vector_unit.slots.registers=16", lambda h: h.vector_unit.slots.registers, 16),
        ("vector_unit.slots.latency=2", lambda h: h.vector_unit.slots.latency, 2),
        ("vector_unit.slots.packed=false", lambda h: h.vector_unit.slots.packed, False),
        ("vector_unit.slots.lookup_cycles=2", lambda h: h.vector_unit.slots.lookup_cycles, 2),
        ("vector_unit.slots.turn_cycles=5/2", lambda h: h.vector_unit.slots.turn_cycles, Fraction(5, 2)),
        ("vector_unit.slots.body_cycles=60", lambda h: h.vector_unit.slots.body_cycles, 60),
        ("vector_unit.slots.window=512", lambda h: h.vector_unit.slots.window, 512),
        ("vector_unit.slots.sum_cycles=70", lambda h: h.vector_unit.slots.sum_cycles, 70),
        ("vector_unit.slots.bare_cycles=80", lambda h: h.vector_unit.slots.bare_cycles, 80),
        ("vector_unit.slots.bare_window=128", lambda h: h.vector_unit.slots.bare_window, 128),
        ("vector_unit.slots.map_cycles=90", lambda h: h.vector_unit.slots.map_cycles, 90),
        ("vector_unit.slots.spread_cycles=4", lambda h: h.vector_unit.slots.spread_cycles, 4),
        ("vector_unit.slots.turn_body_cycles=99", lambda h: h.vector_unit.slots.turn_body_cycles, 99),
        ("vector_unit.slots.turn_window=384", lambda h: h.vector_unit.slots.turn_window, 384),
        ("vector_unit.functions.sigmoid=1 + 3 + 2", lambda h: h.vector_unit.functions.sigmoid, (1, 3, 2)),
        ("vector_unit.functions.wide_divide=3 + 12 + 1", lambda h: h.vector_unit.functions.wide_divide, (3, 12, 1)),
        ("vector_unit.functions.wide_sigmoid=1 + 2 + 3", lambda h: h.vector_unit.functions.wide_sigmoid, (1, 2, 3)),
        ("vector_unit.functions.gelu_tanh=6 + 3", lambda h: h.vector_unit.functions.gelu_tanh, (6, 3, 0)),
        ("vector_unit.arithmetic=narrow", lambda h: h.vector_unit.arithmetic, "narrow"),
        ("vector_unit.functions.exp=3 + 4", lambda h: h.vector_unit.functions.exp, (3, 4, 0)),
        ("vector_unit.functions.tanh=0+1", lambda h: h.vector_unit.functions.tanh, (0, 1, 0)),
        ("vector_unit.functions.erf=null", lambda h: h.vector_unit.functions.erf, None),
        ("vector_unit.functions.reciprocal_root=7+ 3", lambda h: h.vector_unit.functions.reciprocal_root, (7, 3, 0)),
        ("vector_unit.functions.divide=5 + 5", lambda h: h.vector_unit.functions.divide, (5, 5, 0)),
        ("mapping.rows=read_again", lambda h: h.mapping.rows, "read_again"),
        ("mapping.entry=relaid", lambda h: h.mapping.entry, "relaid"),
        ("hbm.channel_multiple=128", lambda h: h.hbm.channel_multiple, 128),
        ("hbm.tile_rows=8", lambda h: h.hbm.tile_rows, 8),
        ("hbm.smallest_tile=1 KiB", lambda h: h.hbm.smallest_tile_bytes, 1024),
        ("hbm.layout=CHW", lambda h: h.hbm.layout.of("ofmap"), "CHW"),
        ("chip_cores=2", lambda h: h.chip_cores, 2),
        ("generation=TPU v5e, 2023", lambda h: h.generation, "TPU v5e, 2023"),
        ("hbm.capacity=16 GiB", lambda h: h.hbm.capacity_bytes, 2**34),
        ("hbm.alignment=512 B", lambda h: h.hbm.alignment_bytes, 512),
        ("hbm.model=pipe", lambda h: h.hbm.dram, None),
        ("hbm.device=hbm2_8ch_300", lambda h: h.hbm.device.channels, 8),
        ("hbm.mapping=rorabgbacoch", lambda h: h.hbm.mapping, "rorabgbacoch"),
        ("sequencer.launch_cycles=250", lambda h: h.sequencer.launch_cycles, 250),
        ("sequencer.between_blocks=drain", lambda h: h.sequencer.between_blocks, "drain"),
        ("sequencer.fusion=results", lambda h: h.sequencer.fusion, "results"),
        ("sequencer.block_cycles=40", lambda h: h.sequencer.block_cycles, 40),
        ("sequencer.between_layers=overlap", lambda h: h.sequencer.between_layers, "overlap"),
        ("hbm.bandwidth=300 GB/s", lambda h: h.hbm.bandwidth_bytes_per_s, 3 * 10**11),
        ("hbm.latency=100 ns", lambda h: h.latency_cycles, 70),
        ("scratch_memory.capacity=1 MiB", lambda h: h.scratch_memory.capacity_bytes, 2**20),
        ("scratch_memory.bandwidth=700 GB/s", lambda h: h.pipes["scratch_memory"].bytes_per_cycle, 1000),
        ("scratch_memory.latency=20 ns", lambda h: h.pipes["scratch_memory"].latency, 14),
        ("hbm.burst=32 B", lambda h: h.hbm.burst_bytes, 32),
        ("mapping.multi_tile=2", lambda h: h.mapping.multi_tile, 2),
        ("mapping.loop_order=filter_major", lambda h: h.mapping.loop_order, "filter_major"),
        ("mapping.chunks=needed", lambda h: h.mapping.chunks, "needed"),
        ("mapping.transformation=before", lambda h: h.mapping.transformation, "before"),
        ("mapping.fetch=per_tap", lambda h: h.mapping.fetch, "per_tap"),
        ("mapping.loads=whole", lambda h: h.mapping.loads, "whole"),
        ("mapping.k_order=taps_fastest", lambda h: h.mapping.k_order, "taps_fastest"),
        ("mapping.layout=least_padding", lambda h: h.mapping.layout, "least_padding"),
        ("technology=45nm", lambda h: h.technology.feature_nm, 45),
        ("mapping.patch=window", lambda h: h.mapping.patch, "window"),
        ("mapping.transposed_channels=4", lambda h: h.mapping.transposed_channels, 4),
        ("mapping.strips=one_image", lambda h: h.mapping.strips, "one_image"),
        ("mapping.row_windows=5", lambda h: h.mapping.row_windows, 5),
        ("mapping.column_folds=all", lambda h: h.mapping.column_folds, "all"),
        ("mapping.block_m=100", lambda h: h.mapping.block_m, 100),
        ("mapping.block_k=auto", lambda h: h.mapping.block_k, "auto"),
        ("mapping.block_n=64", lambda h: h.mapping.block_n, 64),
        ("mapping.block.rows=8", lambda h: h.mapping.block.rows, 8),
        ("mapping.block.cols=auto", lambda h: h.mapping.block.cols, "auto"),
        ("mapping.search=simulate", lambda h: h.mapping.search, "simulate"),
        ("mapping.block.images=16", lambda h: h.mapping.block.images, 16),
        ("mapping.block.in_channels=128", lambda h: h.mapping.block.in_channels, 128),
        ("mapping.block.out_channels=256", lambda h: h.mapping.block.out_channels, 256),
        ("mapping.block.taps=3", lambda h: h.mapping.block.taps, 3),
        ("mapping.block.tap_cols=3", lambda h: h.mapping.block.tap_cols, 3),
        ("array.split=2", lambda h: h.array.split, 2),
        ("vector_memory.result_bytes=4", lambda h: h.vector_memory.result_bytes, 4),
        ("vector_unit.stack_free=3", lambda h: h.vector_unit.stack_free, 3),
        ("vector_unit.stack_by=word", lambda h: h.vector_unit.stack_by, "word"),
        ("vector_unit.stack_by=column", lambda h: h.vector_unit.stack_by, "column"),
        ("mapping.window=2 MiB", lambda h: h.mapping.window_bytes, 2**21),
        ("mapping.window_cycles=500", lambda h: h.mapping.window_cycles, 500),
        ("mapping.window_results=3", lambda h: h.mapping.window_results, 3),
        ("mapping.window_bandwidth=17/20", lambda h: h.mapping.window_bandwidth, Fraction(17, 20)),
        ("sequencer.loop_cycles=90", lambda h: h.sequencer.loop_cycles, 90),
        ("vector_unit.gather_cycles=1/2", lambda h: h.vector_unit.gather_cycles, Fraction(1, 2)),
        *OF_TYPES,
        *(
            (f"types.{name}.window=1 MiB", lambda h, name=name: getattr(h.types, name).window_bytes, 2**20)
            for name in ("f32", "bf16", "f16", "int8", "f8")
        ),
    ],
)
def test_override_reaches_every_field(override, read, value):
    path, text = override.split("=")
    assert path in FORM.paths
    # A device is no use to a pipe, and what may be left out comes as a whole.
    name = "tpu_v2_hbm" if path in ("hbm.device", "hbm.mapping") else "tpu_v2"
    others = SCRATCH if path.startswith("scratch_memory") else SLOTS if path.startswith("vector_unit.slots") else {}
    if path.startswith("types"):
        others = {f"{path.rpartition('.')[0]}.bytes": "2"}
    assert read(load_hardware(name, {**others, path: text})) == value
    assert read(load_hardware(name, [f"{key}={each}" for key, each in {**others, path: text}.items()])) == value
    assert read(load_hardware(name, others).with_overrides([override])) == value


SLOTS = {f"vector_unit.slots.{name}": "7" for name in ("loads", "stores", "lanes", "registers")}
SLOTS |= {"vector_unit.slots.register": "8 B"}
SCRATCH = {
    "scratch_memory.capacity": "128 MiB",
    "scratch_memory.bandwidth": "2 TB/s",
    "scratch_memory.latency": "10 ns",
}


def test_a_scratch_memory_may_be_left_out_but_not_half_of_it():
    machine = load_hardware("tpu_v2")
    assert machine.scratch_memory is None
    assert [*machine.pipes] == ["hbm"]
    assert "scratch_memory" not in machine.to_dict()
    there = machine.with_overrides(SCRATCH)
    assert Hardware.model_validate(there.to_dict()) == there != machine
    with pytest.raises(InputError, match=r"scratch_memory\.latency: required key is missing; add latency: 20 ns"):
        load_hardware("tpu_v2", {key: value for key, value in SCRATCH.items() if "latency" not in key})
    with pytest.raises(InputError, match="scratch_memory is a section; set one of its fields"):
        load_hardware("tpu_v2", ["scratch_memory=128 MiB"])


def test_every_path_is_tested_above():
    marks = test_override_reaches_every_field.pytestmark
    assert {case[0].split("=")[0] for case in marks[0].args[1]} == set(FORM.paths)


def test_override_mapping_takes_numbers():
    assert load_hardware("tpu_v2", {"array.size": 32, "mapping.multi_tile": 3}).array.rows == 32


def test_one_override_needs_no_list():
    assert load_hardware("tpu_v2", "array.size=64") == load_hardware("tpu_v2", ["array.size=64"])
    assert load_hardware("tpu_v2").with_overrides("array.size=64").array.rows == 64


@pytest.mark.parametrize(
    ("written", "exactly", "again"),
    [("6", 6, 6), ("13.4", Fraction(67, 5), 13.4), ("0.1", Fraction(1, 10), 0.1), ("1/3", Fraction(1, 3), "1/3"),
     ("6/8", Fraction(3, 4), 0.75), ("1e-2", Fraction(1, 100), 0.01)],
)  # fmt: skip
def test_fractions_are_what_is_written(written: str, exactly: object, again: object) -> None:
    """In any spelling; not the binary number next to it."""
    machine = load_hardware("tpu_v2", [f"vector_unit.pack_cycles={written}"])
    assert machine.vector_unit.pack_cycles == exactly
    assert machine.to_dict()["vector_unit"]["pack_cycles"] == again
    assert VectorUnit(alus=1, pack_cycles=again) == VectorUnit(alus=1, pack_cycles=exactly)


@pytest.mark.parametrize("wrong", ["-1", "-0.5", "65537", "fast", "1/0", "5 cycles", "true", "nan", "9" * 5000])
def test_fractions_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(InputError, match=r"write a number, 0 to 65536, such as 13\.4 or 3/4"):
        load_hardware("tpu_v2", [f"vector_unit.stack_cycles={wrong}"])


def test_integers_of_numpy_are_numbers():
    array = Array(rows=np.int64(4), cols=np.uint16(8))
    assert (array, type(array.rows)) == (Array(rows=4, cols=8), int)
    assert Hbm(bandwidth_bytes_per_s=np.int64(7)) == Hbm(bandwidth_bytes_per_s=7)
    policy = MappingPolicy(multi_tile=np.int64(2))
    assert (policy, type(policy.multi_tile)) == (MappingPolicy(multi_tile=2), int)
    with pytest.raises(
        ValidationError,
        match="0 is not allowed; write auto or rows or dense or dense_taps or dense_rows or a whole number",
    ):
        MappingPolicy(multi_tile=np.int64(0))


def test_the_last_of_two_overrides_of_one_path_counts():
    assert load_hardware("tpu_v2", ["array.rows=4", "array.rows=8"]).array.rows == 8


def test_override_repairs_a_wrong_value(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text(
        (CONFIGS / "tpu_v2.yaml").read_text(encoding="utf-8").replace("700 MHz", "fast", 1), encoding="utf-8"
    )
    assert load_hardware(path, ["clock=1 MHz"]).clock_hz == 10**6


def test_optional_keys_have_defaults(tmp_path):
    path = tmp_path / "least.yaml"
    path.write_text(
        "clock: 1 MHz\narray: {rows: 2, cols: 3}\nvector_unit: {alus: 3}\nhbm: {bandwidth: 1 MB/s}\n"
        "vector_memory: {capacity: 1 KiB, word_elements: 2, element_bytes: 4}\n",
        encoding="utf-8",
    )
    machine = load_hardware(path)
    assert machine.name == "least"
    assert machine.array.weight_buffers == 2
    assert machine.mapping == MappingPolicy()
    tpu = load_hardware("tpu_v2")
    assert (machine.hbm.latency_ps, machine.hbm.burst_bytes) == (tpu.hbm.latency_ps, tpu.hbm.burst_bytes)


def test_anchors_and_merge_keys_are_read(tmp_path):
    text = (CONFIGS / "tiny_4x4.yaml").read_text(encoding="utf-8").replace("  rows: 4 ", "  rows: &side 4 ")
    path = tmp_path / "anchors.yaml"
    path.write_text(text.replace("  cols: 4 ", "  cols: *side "), encoding="utf-8")
    assert load_hardware(path).array == Array(rows=4, cols=4)


def test_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (CONFIGS / "tpu_v2.yaml").read_bytes())
    assert load_hardware(path) == load_hardware("tpu_v2")


def test_hardware_is_frozen_hashable_and_pickles():
    tpu = load_hardware("tpu_v2")
    with pytest.raises(ValidationError, match="frozen"):
        tpu.clock_hz = 1
    assert hash(tpu) == hash(load_hardware("tpu_v2"))
    assert pickle.loads(pickle.dumps(tpu)) == tpu


def test_python_construction_is_checked():
    with pytest.raises(ValidationError, match="0 is out of range"):
        Array(rows=0, cols=1)
    with pytest.raises(ValidationError, match="cannot hold one word of 32 B"):
        VectorMemory(word_elements=8, element_bytes=4, capacity_bytes=31)
    with pytest.raises(ValidationError, match="Extra inputs"):
        Array(rows=1, cols=1, lanes=1)


def test_capacity_is_checked_against_an_overridden_word():
    with pytest.raises(InputError, match="cannot hold one word of 16384 B"):
        load_hardware("tiny_4x4", ["vector_memory.word_elements=4096"])


def test_array_size_brings_the_vector_alus_of_its_lanes() -> None:
    """Two ALUs a lane stay two a lane, unless their number is set as well."""
    assert load_hardware("tpu_v2", ["array.size=512"]).vector_unit.alus == 1024
    assert load_hardware("tpu_v2", ["array.size=32"]).vector_unit.alus == 64
    assert load_hardware("tpu_v2", ["array.size=512", "vector_unit.alus=256"]).vector_unit.alus == 256
    assert load_hardware("tpu_v2", ["array.rows=512"]).vector_unit.alus == 256


@pytest.mark.parametrize(
    ("sides", "alus"), [(["array.rows=64"], 512), (["array.cols=64"], 512), (["array.rows=256"], 256)]
)
def test_the_alus_of_a_lane_are_those_of_the_longer_side(sides: list[str], alus: int) -> None:
    """256 ALUs for 128, 128 and 256 lanes: as many a lane on 256 lanes, whichever side is the longer."""
    flat = load_hardware("tpu_v2").with_overrides(sides)
    square = flat.with_overrides(["array.size=256"])
    assert (square.array.rows, square.array.cols, square.vector_unit.alus) == (256, 256, alus)
    assert flat.with_overrides(["array.size=1"]).vector_unit.alus == 256 // flat.lanes


LAID_OUT = """\
name: mine
clock: 700 MHz
array: {rows: 8, cols: 8}
vector_memory: {capacity: 64 KiB, word_elements: 8, element_bytes: 4}
vector_unit: {alus: 16}
hbm:
  bandwidth: 70 GB/s
  layout:
    ifmap: HWC
    filter: OHWI
"""


def test_tensors_may_have_layouts_of_their_own(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(LAID_OUT)
    layout = load_hardware(file).hbm.layout
    assert [layout.of(each) for each in ("ifmap", "ofmap", "filter")] == ["HWC", "HWCN", "OHWI"]
    assert load_hardware(file, ["hbm.layout=CHW"]).hbm.layout.of("ifmap") == "CHW"
    file.write_text(LAID_OUT.replace("HWC", "hwc").replace("OHWI", "WIHO"))
    with pytest.raises(InputError) as raised:
        load_hardware(file)
    first, second = str(raised.value).splitlines()
    assert first.startswith(f'{file}:9: hbm.layout.ifmap: "hwc" is not a layout of feature maps; did you mean HWC?')
    assert second.startswith(f'{file}:10: hbm.layout.filter: "WIHO" is not a layout of the filter')


def test_a_generation_has_a_name_and_a_year() -> None:
    assert load_hardware("tpu_v2", {"generation": "TPU v9, 2031"}).to_dict()["generation"] == "TPU v9, 2031"
    assert "generation" not in load_hardware("tpu_v2").to_dict()
    for wrong in ("TPU v9", "2031", "TPU v9, 31", "TPU v9 2031"):
        for name in ("tpu_v2", "v100"):
            with pytest.raises(InputError, match=f"generation={wrong}: .*such as TPU v5e, 2023|is not text; put it in"):
                load_hardware(name, {"generation": wrong})


def test_a_copy_and_another_process_work_out_their_own_hash() -> None:
    """A hash that is kept is of one object in one process."""
    hardware = load_hardware("tpu_v2")
    assert hash(hardware) == hash(load_hardware("tpu_v2"))
    renamed = hardware.model_copy(update={"name": "another"})
    assert {hardware: 1}.get(renamed) is None
    looks_up = "import pickle, sys, tpusim; print({pickle.load(sys.stdin.buffer): 1}[tpusim.load_hardware('tpu_v2')])"
    told = subprocess.run([sys.executable, "-c", looks_up], input=pickle.dumps(hardware), capture_output=True)
    assert told.stdout.strip() == b"1", told.stderr
