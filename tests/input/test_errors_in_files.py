"""Every malformed file is refused with the file, the line, the path, and what to do about it."""

import io
import pickle
import sys
from pathlib import Path

import pytest

from tpusim.base.errors import CapacityError, CheckFailed, DeadlockError, InputError, Problem, did_you_mean
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload_file import load_workload

HARDWARE = """\
name: mine
clock: 700 MHz
array:
  rows: 128
  cols: 128
vector_memory:
  capacity: 256 KiB
  word_elements: 8
  element_bytes: 4
vector_unit:
  alus: 256
hbm:
  bandwidth: 700 GB/s
  latency: 46.2 ns
mapping:
  multi_tile: auto
"""

WORKLOAD = """\
name: mine
layers:
  - name: conv1
    op: conv2d
    in_channels: 4
    in_height: 9
    in_width: 9
    out_channels: 8
    kernel: 3
    groups: 1
  - {name: fc, op: gemm, m: batch, n: 10, k: 20}
"""

# (line of the file that is replaced, its replacement, line and path reported, words of the message)
HARDWARE_CASES = [
    ("clock: 700 MHz", "clock: 700", "2: clock", "700 has no unit; write e.g. 700 MHz"),
    ("clock: 700 MHz", "clock: 700 Mhz", "2: clock", "unknown unit 'Mhz' ... did you mean MHz?"),
    ("clock: 700 MHz", "clock: 700 GB/s", "2: clock", "unknown unit 'GB/s' ... units: GHz, MHz"),
    ("clock: 700 MHz", "clock: 0 MHz", "2: clock", "not positive; write a frequency above zero"),
    ("clock: 700 MHz", "clock: -700 MHz", "2: clock", "not positive"),
    ("clock: 700 MHz", "clock: nan MHz", "2: clock", "not finite"),
    ("clock: 700 MHz", "clock: .inf", "2: clock", "not finite"),
    ("clock: 700 MHz", "clock: 0.3 Hz", "2: clock", "not a whole number of Hz"),
    ("clock: 700 MHz", "clock: 1e999999999 Hz", "2: clock", "out of range"),
    ("clock: 700 MHz", "clock: 700 GHz", "2: clock", "too large; write at most 100 GHz"),
    ("clock: 700 MHz", "clock: fast", "2: clock", "write a number and a unit, e.g. 700 MHz"),
    ("clock: 700 MHz", "clock:", "2: clock", "a frequency is text with a unit; write e.g. 700 MHz"),
    ("clock: 700 MHz", "clock_hz: 700 MHz", "2: clock_hz", "unknown key ... did you mean clock?"),
    (
        "clock: 700 MHz",
        "hbm.burst: 7 B\nclock: 700 MHz",
        "2: hbm.burst",
        'unknown key "hbm.burst"; write the key after the dot',
    ),
    ("  rows: 128", "  rows.x: 128", "4: array.rows.x", 'unknown key "rows.x"; did you mean rows?'),
    ("clock: 700 MHz", "clock: !mine 700 MHz", "2: clock", "the tag !mine is not allowed; remove it"),
    ("name: mine", "name: 12", "1: name", '12 is not text; put it in quotes: "12"'),
    ("name: mine", "name: ''", "1: name", "write some text"),
    ("name: mine", 'name: "two\\nlines"', "1: name", "write one line of at most 200 printable characters"),
    ("  rows: 128", "  rows: 128.0", "4: array.rows", "128.0 is not a whole number; write 128"),
    ("  rows: 128", '  rows: "128"', "4: array.rows", "text because it is in quotes; write 128 without them"),
    ("  rows: 128", "  rows: 1e3", "4: array.rows", "not a plain number to YAML; write 1000"),
    ("  rows: 128", "  rows: 010", "4: array.rows", "not a plain number to YAML; write 10"),
    ("  rows: 128", "  rows: yes", "4: array.rows", "truth value (YAML reads yes ... write a whole number"),
    ("  rows: 128", "  rows: 0", "4: array.rows", "0 is out of range; write a whole number, 1 to 65536"),
    ("  rows: 128", "  rows: -4", "4: array.rows", "-4 is out of range"),
    ("  rows: 128", "  rows: 65537", "4: array.rows", "out of range ... 1 to 65536"),
    ("  rows: 128", f"  rows: {'9' * 6000}", "4: array.rows", "9999... ... write a whole number"),
    ("  rows: 128", "  rows: [128]", "4: array.rows", "[128] is not a number"),
    ("  rows: 128", "  rows: ", "4: array.rows", "an empty value is not a number"),
    (
        "  rows: 128",
        "  row: 128",
        "4: array.row",
        "unknown key ... did you mean rows? allowed in array: rows, cols",
    ),
    ("  rows: 128", "  weight_buffers: 3", "4: array.weight_buffers", "write a whole number, 1 to 2"),
    (
        "  rows: 128",
        "  cols: 64\n  rows: 128",
        "6: array.cols",
        "key given twice, first on line 4; remove one",
    ),
    ("  rows: 128", "  size: 64", "4: array.size", "size 64 sets rows and cols, but cols is 128; remove one"),
    ("  rows: 128", "  size: big", "4: array.size", '"big" is not a number'),
    (
        "  capacity: 256 KiB",
        "  capacity: 16 B",
        "7: vector_memory.capacity",
        "one word of 32 B ... at least 32 B",
    ),
    ("  capacity: 256 KiB", "  capacity: 256", "7: vector_memory.capacity", "no unit; write e.g. 256 KiB"),
    ("  word_elements: 8", "  words: 8", "6: vector_memory.word_elements", "missing; add word_elements: 8"),
    ("  alus: 256", "  alus: 256\n  rows: 1", "12: vector_unit.rows", "did you mean array.rows?"),
    ("  alus: 256", "  {}", "10: vector_unit.alus", "required key is missing; add alus: 256"),
    ("  bandwidth: 700 GB/s", "  bandwidth: 700", "13: hbm.bandwidth", "no unit; write e.g. 700 GB/s"),
    (
        "  bandwidth: 700 GB/s",
        "  bandwidth: 5 Gb/s",
        "13: hbm.bandwidth",
        "unknown unit ... did you mean GB/s?",
    ),
    ("  latency: 46.2 ns", "  latency: 46", "14: hbm.latency", "no unit; write e.g. 100 ns"),
    ("  latency: 46.2 ns", "  latency: 1 s", "14: hbm.latency", "too large; write at most 1 ms"),
    ("  multi_tile: auto", "  multi_tile: Auto", "16: mapping.multi_tile", "did you mean auto?"),
    ("  multi_tile: auto", "  multi_tile: 0", "16: mapping.multi_tile", "dense_rows or a whole number, 1 to 65536"),
    (
        "  multi_tile: auto",
        "  loop_order: blocks",
        "16: mapping.loop_order",
        "auto or block_major or filter_major",
    ),
    ("mapping:", "maping:", "15: maping", "unknown key ... did you mean mapping?"),
    (
        "vector_unit:",
        "vector_unit: 3\nalus:",
        "10: vector_unit",
        "3 is not a section; write vector_unit: with",
    ),
    ("hbm:", "hbms:", "1: hbm", "required key is missing; add hbm: with the keys model, bandwidth, latency, burst"),
]

WORKLOAD_CASES = [
    ("name: mine", "nam: mine", "1: nam", "unknown key ... did you mean name? allowed: name, layers, source"),
    ("name: mine", "source: 5\nname: mine", "1: source", "5 is not text"),
    ("name: mine", "name: 3", "1: name", 'put it in quotes: "3"'),
    ("layers:", "layer:", "1: layers", "required key is missing"),
    (
        "    op: conv2d",
        "    op: conv",
        "4: layers[0].op",
        'layer "conv1": unknown op "conv"; write op: conv2d, with in_channels',
    ),
    (
        "    op: conv2d",
        "    groups: 1",
        "3: layers[0].op",
        "missing; add op: with one of conv2d, conv1d, conv_transpose2d, deform_conv2d, gemm",
    ),
    (
        "  - name: conv1",
        "  - nme: conv1",
        "3: layers[0].nme",
        "unknown key ... did you mean name? ... for conv2d",
    ),
    ("  - name: conv1", "  - name: fc", "11: layers[1].name", 'the name "fc" is taken by layers[0]'),
    (
        "    in_channels: 4",
        "    in_channels: 0",
        "5: layers[0].in_channels",
        'layer "conv1": 0 is out of range',
    ),
    ("    in_channels: 4", "    in_channels: 4.5", "5: layers[0].in_channels", "4.5 is not a whole number"),
    ("    in_channels: 4", "", "3: layers[0].in_channels", "required key is missing; add in_channels:"),
    ("    in_height: 9", "    in_height: 5000000", "6: layers[0].in_height", "out of range ... 1 to 4194304"),
    (
        "    kernel: 3",
        "    kernel: 11",
        "9: layers[0].kernel",
        "spans 11 in height ... padded input only 9 ... more padding",
    ),
    ("    kernel: 3", "    kernel: [3, 11]", "9: layers[0].kernel", "spans 11 in width"),
    (
        "    kernel: 3",
        "    kernel: 3\n    dilation: 5",
        "9: layers[0].kernel",
        "spans 11 in height ... dilation",
    ),
    (
        "    kernel: 3",
        "    kernel: [3]",
        "9: layers[0].kernel",
        "[3] is not one number or two; write one, or [height, width]",
    ),
    ("    kernel: 3", "    kernel: [3, 3, 3]", "9: layers[0].kernel", "is not one number or two"),
    ("    kernel: 3", "    kernel: big", "9: layers[0].kernel", '"big" is not a size; write a whole number'),
    ("    kernel: 3", '    kernel: ["3", 3]', "9: layers[0].kernel", "in quotes; write 3 without them"),
    ("    kernel: 3", "    kernel: {h: 3}", "9: layers[0].kernel", "a mapping is not a size"),
    (
        "    groups: 1",
        "    groups: 3",
        "10: layers[0].groups",
        "groups 3 does not divide in_channels 4; choose",
    ),
    (
        "    groups: 1",
        "    padding: [0, 1, 0]",
        "10: layers[0].padding",
        "[0, 1, 0] is not a padding; write a whole number, [height, width], [top, ... right], same or same_lower",
    ),
    ("    groups: 1", "    padding: [0, 0, -1, 0]", "10: layers[0].padding", "-1 is out of range; ... 0 to 4194304"),
    ("    groups: 1", "    padding: SAME", "10: layers[0].padding", '"SAME" is not a padding; did you mean same?'),
    ("    groups: 1", "    padding: valid", "10: layers[0].padding", '"valid" is not a padding; did you mean 0?'),
    ("    groups: 1", "    padding: -1", "10: layers[0].padding", "-1 is out of range; ... 0 to 4194304"),
    ("    groups: 1", "    padding: sideways", "10: layers[0].padding", '"sideways" is not a padding; write a whole'),
    ("    groups: 1", "    stride: 0", "10: layers[0].stride", "0 is out of range"),
    (
        "    groups: 1",
        "    strides: 2",
        "10: layers[0].strides",
        "did you mean stride? allowed for conv2d: name, in_channels",
    ),
    ("m: batch", "m.n: 2", "11: layers[1].m.n", 'unknown key "m.n"; allowed for gemm'),
    ("m: batch", "m: Batch", "11: layers[1].m", 'layer "fc": "Batch" ... did you mean batch?'),
    (
        "m: batch",
        "m: batch, kernel: 3",
        "11: layers[1].kernel",
        "unknown key ... allowed for gemm: name, m, n, k, groups, stored, op",
    ),
    ("n: 10", "n: many", "11: layers[1].n", '"many" is not a number'),
    ("k: 20", "k: 1e9", "11: layers[1].k", "write 1000000000"),
    (
        "  - {name: fc, op: gemm, m: batch, n: 10, k: 20}",
        "  - 5",
        "11: layers[1]",
        "5 is not a layer; write e.g.",
    ),
    ("  - name: conv1", "  - <<: 5\n    name: conv1", "3: layers[0]", "<< merges mappings only"),
]

# Texts that are no mapping at all: (text, line, words); read as a workload.
TEXT_CASES = [
    ("", 1, "the file is empty; write keys"),
    ("# nothing\n", 1, "the file is empty"),
    ("- a\n", 1, "the top level is a list, not a mapping; write keys"),
    ("\n42\n", 2, "the top level is a single value"),
    ("name: x\nlayers: []\n", 2, "no layers; write at least one"),
    ("name: x\nlayers: {a: 1}\n", 2, "a mapping is not a list; start each layer with '- '"),
    ("name: x\n\tlayers: 3\n", 2, "a tab cannot indent YAML; use spaces"),
    ("name: x\nlayers: [\n  {a: 1\n", 4, "not valid YAML ... begun on line 3 ... check the indentation"),
    ("name: x\nlayers: *nobody\n", 2, "undefined alias"),
    ("name: x\n---\nname: y\n", 2, "second document ... one document to a file"),
    ("name: x\nlayers:\n- &a {name: a, op: gemm, m: *a}\n", 3, "an alias stands inside what it refers to"),
    ("a: " + "[" * 100_000, 1, "nested over 50 levels deep; flatten it"),
    ("name: a\x07\n", 1, "'\\x07' is not allowed in YAML; remove it"),
    ("name: x\n? [a]\n: 3\nlayers: []\n", 2, "a key must be plain text"),
]

ALIAS_BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]\n" for last, this in zip("abcdef", "bcdefg", strict=True)
)


ALIAS_TOWER = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 600))


def refused(load, path: Path, text: str) -> InputError:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(str(path))
    return caught.value


def assert_says(problem: Problem, where: str, words: str) -> None:
    assert problem.where == where
    at = 0
    for part in words.split(" ... "):
        at = problem.message.find(part, at)
        assert at >= 0, f"{part!r} of {words!r} is missing from {problem.message!r}"


def problem_at(error: InputError, where: str) -> Problem:
    return next((each for each in error.problems if each.where == where), error.problems[0])


@pytest.mark.parametrize(("line", "instead", "place", "words"), HARDWARE_CASES, ids=lambda text: text[:40].strip())
def test_hardware_file(tmp_path, line, instead, place, words):
    path = tmp_path / "machine.yaml"
    assert HARDWARE.count(f"{line}\n") == 1
    error = refused(load_hardware, path, HARDWARE.replace(f"{line}\n", f"{instead}\n"))
    assert_says(problem_at(error, f"{path}:{place}"), f"{path}:{place}", words)


@pytest.mark.parametrize(("old", "new", "place", "words"), WORKLOAD_CASES, ids=lambda text: text[:40].strip())
def test_workload_file(tmp_path, old, new, place, words):
    path = tmp_path / "net.yaml"
    assert WORKLOAD.count(old) == 1
    error = refused(load_workload, path, WORKLOAD.replace(old, new))
    assert_says(problem_at(error, f"{path}:{place}"), f"{path}:{place}", words)


@pytest.mark.parametrize(("text", "line", "words"), TEXT_CASES, ids=lambda value: str(value)[:20])
def test_text_that_is_no_description(tmp_path, text, line, words):
    path = tmp_path / "net.yaml"
    problem = refused(load_workload, path, text).problems[0]
    assert problem.where is not None
    assert problem.where.split(": ")[0] == f"{path}:{line}"
    assert_says(problem, problem.where, words)


def test_aliases_that_explode_are_refused(tmp_path):
    error = refused(load_workload, tmp_path / "bomb.yaml", ALIAS_BOMB)
    assert "over 200000 values with aliases written out" in str(error)
    assert len(str(error)) < 500


def test_aliases_that_nest_too_deep_are_refused(tmp_path):
    path = tmp_path / "tower.yaml"
    (problem,) = refused(load_workload, path, ALIAS_TOWER).problems
    assert_says(problem, f"{path}:51: a50", "nested over 50 levels deep; flatten it")


def test_one_mistake_gives_one_problem(tmp_path):
    for line, instead in (
        ("  rows: 128", "  rows: 0"),
        ("clock: 700 MHz", "clock: !x 1"),
        ("  rows: 128", "  size: x"),
    ):
        text = HARDWARE.replace("  cols: 128\n", "") if "size" in instead else HARDWARE
        error = refused(load_hardware, tmp_path / "machine.yaml", text.replace(line, instead))
        assert len(error.problems) == 1, str(error)


def test_all_problems_of_a_hardware_file_come_together_in_line_order(tmp_path):
    path = tmp_path / "machine.yaml"
    text = (
        HARDWARE.replace("clock: 700 MHz", "clock: 700")
        .replace("  cols: 128", "  columns: 128\n  rows: 128")
        .replace("  alus: 256", "  alus: -1")
        .replace("multi_tile: auto", "multi_tile: never")
    )
    error = refused(load_hardware, path, text)
    assert [problem.where for problem in error.problems] == [
        f"{path}:2: clock",
        f"{path}:3: array.cols",
        f"{path}:5: array.columns",
        f"{path}:6: array.rows",
        f"{path}:12: vector_unit.alus",
        f"{path}:17: mapping.multi_tile",
    ]
    assert str(error).splitlines() == [str(problem) for problem in error.problems]
    assert error.exit_code == 2


def test_all_problems_of_a_workload_come_together_in_line_order(tmp_path):
    path = tmp_path / "net.yaml"
    text = WORKLOAD.replace("in_channels: 4", "in_chanels: 4").replace("kernel: 3", "kernel: 0")
    error = refused(load_workload, path, text.replace("k: 20", "k: many") + "extra: 1\n")
    assert [problem.where for problem in error.problems] == [
        f"{path}:3: layers[0].in_channels",
        f"{path}:5: layers[0].in_chanels",
        f"{path}:9: layers[0].kernel",
        f"{path}:11: layers[1].k",
        f"{path}:12: extra",
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["array.size"], "--set array.size: no value; write PATH=VALUE"),
        (["array.row=4"], "--set array.row=4: no field ... did you mean array.rows? fields: array.rows, array.cols, "),
        (["zzz=4"], '--set zzz=4: no field "zzz"; fields: name, generation, clock, technology, chip_cores, array.*, '),
        (["word_elements=4"], "did you mean vector_memory.word_elements?"),
        (["clock_hz=1 MHz"], "no field ... did you mean clock?"),
        (["array=4"], "array is a section; set one of its fields: array.rows"),
        (["array.rows=4.0"], "--set array.rows=4.0: 4.0 is not a whole number; write 4"),
        (["clock=700"], "--set clock=700: 700 has no unit; write e.g. 700 MHz"),
        (["clock=[1"], "not a single value"),
        (["clock={a: 1}"], "not a single value"),
        (
            ["array.size=64", "array.cols=32"],
            "--set array.size=64: size 64 sets rows and cols, but cols is 32; remove one",
        ),
        (["mapping.multi_tile=Auto"], "--set mapping.multi_tile=Auto: ... did you mean auto?"),
        ({"array.rows": 0}, "--set array.rows=0: 0 is out of range"),
    ],
)
def test_overrides(overrides, words):
    with pytest.raises(InputError) as caught:
        load_hardware("tpu_v2", overrides)
    assert len(caught.value.problems) == 1
    assert_says(Problem(str(caught.value)), None, words)


def test_problems_of_file_and_overrides_come_together(tmp_path):
    path = tmp_path / "machine.yaml"
    path.write_text(HARDWARE.replace("700 MHz", "700"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_hardware(path, ["array.rows=0", "foo=1"])
    wheres = [problem.where for problem in caught.value.problems]
    assert wheres == [f"{path}:2: clock", "--set foo=1", "--set array.rows=0"]


@pytest.mark.parametrize(
    ("load", "name", "words"),
    [
        (
            load_hardware,
            "tpu_v2_ba",
            "tpu_v2_ba: no shipped hardware ... did you mean tpu_v2_banked? shipped: a100, h100, t4, tiny_4x4",
        ),
        (
            load_workload,
            "resnet51",
            "resnet51: no shipped workload ... did you mean resnet50 ... shipped: alexnet,",
        ),
        (load_hardware, "tpu_v2.yaml", "tpu_v2.yaml: no such file; did you mean tpu_v2? shipped:"),
        (
            load_hardware,
            "nowhere/at/all.yaml",
            "nowhere/at/all.yaml: no such file; shipped: a100, h100, t4, tiny_4x4",
        ),
        (load_workload, "", '"": no shipped workload'),
        (load_workload, "a\0b", "no shipped workload"),
        (load_workload, "x" * 9000, "no shipped workload"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unknown_names(load, name, words):
    with pytest.raises(InputError) as caught:
        load(name)
    assert_says(Problem(str(caught.value)), None, words)
    assert len(str(caught.value)) < 1000


def test_directory(tmp_path):
    with pytest.raises(InputError, match="is a directory; give a file"):
        load_workload(tmp_path)


def test_file_without_permission(tmp_path, monkeypatch):
    path = tmp_path / "machine.yaml"
    path.write_text(HARDWARE, encoding="utf-8")

    def denied(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(InputError, match=r"machine\.yaml: cannot be read \(Permission denied\)"):
        load_hardware(path)


def test_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_bytes(b"name: x\nlayers: \xe9\n")
    with pytest.raises(InputError, match=r"net\.yaml:2: byte 0xe9 is not UTF-8 text; save the file as UTF-8"):
        load_workload(path)


def test_enormous_file(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_bytes(b"#" * (8 * 2**20 + 1))
    with pytest.raises(InputError, match="larger than 8 MiB"):
        load_workload(path)


def test_standard_input_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"name: x\nlayers: 3\n")))
    with pytest.raises(InputError, match=r"^<stdin>:2: layers: 3 is not a list"):
        load_workload("-")


@pytest.mark.parametrize(("batch", "words"), [(0, "0 is out of range"), (True, "truth value"), (2**17, "1 to 65536")])
def test_batch(batch, words):
    with pytest.raises(InputError, match=rf"batch: .*{words}"):
        load_workload("resnet50", batch=batch)


def test_exit_codes():
    assert (InputError.exit_code, CapacityError.exit_code) == (2, 2)
    assert (CheckFailed.exit_code, DeadlockError.exit_code) == (1, 1)


def test_input_error_survives_pickling():
    error = CapacityError([Problem("too big", "a.yaml:3: x", 3), Problem("and again")])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is CapacityError
    assert copy.problems == error.problems
    assert str(copy) == "a.yaml:3: x: too big\nand again"


def test_did_you_mean():
    assert did_you_mean("ROWS", ["rows", "cols"]) == "; did you mean rows?"
    assert did_you_mean("rows", ["array.rows"]) == "; did you mean array.rows?"
    assert did_you_mean("zebra", ["rows", "cols"]) == ""
