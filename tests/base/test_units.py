from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import LETTERS
from tpusim.base.errors import InputError
from tpusim.base.units import AREA, BANDWIDTH, ENERGY, FREQUENCY, LENGTH, POWER, SIZE, TIME

UNITS = [FREQUENCY, SIZE, BANDWIDTH, TIME]


@pytest.mark.parametrize(
    ("unit", "text", "amount"),
    [
        (FREQUENCY, "700 MHz", 700_000_000),
        (FREQUENCY, "0.7 GHz", 700_000_000),
        (FREQUENCY, "7e2MHz", 700_000_000),
        (FREQUENCY, " 700_000 kHz ", 700_000_000),
        (FREQUENCY, "1 Hz", 1),
        (SIZE, "256 KiB", 2**18),
        (SIZE, "32 MiB", 2**25),
        (SIZE, "64 B", 64),
        (SIZE, "1 KB", 1000),
        (SIZE, "1 kB", 1000),
        (SIZE, "2 MB", 2_000_000),
        (SIZE, "1 GB", 10**9),
        (SIZE, ".5 KiB", 512),
        (BANDWIDTH, "700 GB/s", 700 * 10**9),
        (BANDWIDTH, "1 GiB/s", 2**30),
        (TIME, "46.2 ns", 46_200),
        (TIME, "100 ns", 100_000),
        (TIME, "1 us", 1_000_000),
    ],
)
def test_parse(unit, text, amount):
    assert unit.parse(text) == amount


@pytest.mark.parametrize(
    ("unit", "amount", "text"),
    [
        (FREQUENCY, 700_000_000, "700 MHz"),
        (FREQUENCY, 1_500_000_000, "1.5 GHz"),
        (SIZE, 2**18, "256 KiB"),
        (SIZE, 1000, "1 kB"),
        (SIZE, 33, "33 B"),
        (BANDWIDTH, 22_400_000_000, "22.4 GB/s"),
        (TIME, 46_200, "46.2 ns"),
        (TIME, 1_000_100, "1000.1 ns"),
    ],
)
def test_format(unit, amount, text):
    assert unit.format(amount) == text


@settings(deadline=None)
@given(st.sampled_from(UNITS), st.integers(1, 10**20))
def test_format_then_parse_gives_the_same_amount(unit, amount):
    assert unit.parse(unit.format(amount)) == amount


@settings(deadline=None)
@given(
    st.sampled_from(UNITS),
    st.text(LETTERS, max_size=60) | st.floats().map(str) | st.floats().map(lambda f: f"{f} GB/s"),
)
def test_any_text_gives_a_positive_amount_or_an_input_error(unit, text):
    with suppress(InputError):
        assert unit.parse(text) > 0


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("bare", [700, 700.0, "700", "7e2"])
def test_bare_number_is_told_its_unit_is_missing(unit, bare):
    with pytest.raises(InputError, match=f"^{bare} has no unit; write e.g. {unit.example}$"):
        unit.parse(bare)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 B", "not positive"),
        ("-1 B", "not positive"),
        ("nan B", "not finite"),
        ("-inf", "not finite"),
        ("1.5 B", "not a whole number of bytes"),
        ("1 MByte", "unknown unit 'MByte' for a size; .*units: GiB, MiB"),
        ("12 kib", r"did you mean KiB\?"),
        ("1e100 B", "out of range"),
        ("9" * 41 + " B", "out of range"),
        ("lots", "write a number and a unit, e.g. 256 KiB"),
        ("", "is not a size"),
        ("1,5 KiB", "unknown unit"),
    ],
)
def test_refused_sizes(text, words):
    with pytest.raises(InputError, match=words):
        SIZE.parse(text)


@pytest.mark.parametrize("value", [True, None, [], {}])
def test_what_is_no_text_at_all(value):
    with pytest.raises(InputError, match=r"^a size is text with a unit; write e\.g\. 256 KiB$"):
        SIZE.parse(value)


TENS = {"a": -18, "f": -15, "p": -12, "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}


@pytest.mark.parametrize(
    ("kind", "unit", "smallest", "prefixes"),
    [
        (FREQUENCY, "Hz", 0, ["G", "M", "k", "K", ""]),
        (SIZE, "B", 0, ["Gi", "Mi", "Ki", "T", "G", "M", "k", "K", ""]),
        (BANDWIDTH, "B/s", 0, ["T", "G", "M", "k", "K", "Gi", "Mi", "Ki", ""]),
        (TIME, "s", -12, ["", "m", "u", "n", "p"]),
        (LENGTH, "m", -9, ["", "m", "u", "n"]),
        (AREA, "m2", -18, ["", "m", "u", "n"]),
        (ENERGY, "J", -18, ["", "m", "u", "n", "p", "f", "a"]),
        (POWER, "W", -12, ["k", "", "m", "u", "n", "p"]),
    ],
)
def test_every_unit_is_what_its_prefix_says(kind, unit, smallest, prefixes):
    power = 2 if unit == "m2" else 1
    binary = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    sizes = [binary.get(each) or 10 ** (power * TENS[each] - smallest) for each in prefixes]
    assert list(kind.scales.items()) == [(f"{each}{unit}", size) for each, size in zip(prefixes, sizes, strict=True)]
    assert kind.parse(kind.example) > 0
