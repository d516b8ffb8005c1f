"""Quantities survive a round trip, round in the safe direction, and fail only with their name."""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.errors import InvalidQuantity
from forgeyard.model.units import (
    LARGEST,
    Rounding,
    bytes_text,
    cpu_text,
    parse_bytes,
    parse_cpu,
    parse_duration,
)
from tests.worlds import demand_hits, fixed, seeds, some_amounts

FACTORS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
SHOWN = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
decimals = st.tuples(st.integers(0, 10**6), st.text("0123456789", max_size=25)).map(
    lambda parts: f"{parts[0]}.{parts[1]}" if parts[1] else str(parts[0])
)
roundings = st.sampled_from(Rounding)


@given(cores=st.integers(0, LARGEST // 1000), rounding=roundings)
@fixed
def test_thousandths_of_cores_survive_writing_and_reading(cores: int, rounding: Rounding) -> None:
    assert parse_cpu(f"{cores}m", field="cpu", rounding=rounding) == cores
    whole, rest = divmod(cores, 1000)
    assert parse_cpu(f"{whole}.{rest:03d}", field="cpu", rounding=rounding) == cores


@given(count=st.integers(0, 2**20), suffix=st.sampled_from(sorted(FACTORS)), rounding=roundings)
@fixed
def test_whole_sizes_survive_writing_and_reading(
    count: int, suffix: str, rounding: Rounding
) -> None:
    for text in (f"{count}{suffix}", f" {count}{suffix}B "):
        read = parse_bytes(text, field="memory", rounding=rounding)
        assert read == count * FACTORS[suffix]


def test_requests_round_up_and_capacity_rounds_down_by_less_than_one() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(written=decimals, suffix=st.sampled_from(sorted(FACTORS)))
    def check(written: str, suffix: str) -> None:
        exact = Fraction(written) * FACTORS[suffix]
        text = written + suffix
        asked = parse_bytes(text, field="memory", rounding=Rounding.REQUEST)
        offered = parse_bytes(text, field="memory", rounding=Rounding.CAPACITY)
        assert exact <= asked < exact + 1
        assert exact - 1 < offered <= exact
        cpu = Fraction(written) * 1000
        assert cpu <= parse_cpu(written, field="cpu", rounding=Rounding.REQUEST) < cpu + 1
        assert cpu - 1 < parse_cpu(written, field="cpu", rounding=Rounding.CAPACITY) <= cpu
        hits["really rounded"] += asked != offered

    check()
    demand_hits(hits, "really rounded")


@given(
    days=st.integers(0, 999),
    hours=st.integers(0, 99),
    minutes=st.integers(0, 99),
    seconds=st.integers(0, 99),
    millis=st.integers(0, 9_999),
)
@fixed
def test_durations_survive_writing_and_reading(
    days: int, hours: int, minutes: int, seconds: int, millis: int
) -> None:
    text = f"{days}d{hours}h{minutes}m{seconds}s{millis}ms"
    total = ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000 + millis
    assert parse_duration(text, field="timeout") == total
    assert parse_duration(f"{total}ms", field="timeout") == total
    assert parse_duration(days, field="timeout") == days * 1_000


def test_any_text_is_read_or_refused_with_its_field() -> None:
    hits: Counter[str] = Counter()
    texts = st.one_of(st.text(max_size=50), st.text("0123456789.smhdkKMGiB -", max_size=8))
    texts = st.one_of(texts, st.from_regex(r"[0-9]{1,3}(\.[0-9])?(ms|m|s|Ki|G|)", fullmatch=True))

    @fixed
    @given(text=texts)
    def check(text: str) -> None:
        readers = (
            lambda: parse_cpu(text, field="it", rounding=Rounding.REQUEST),
            lambda: parse_bytes(text, field="it", rounding=Rounding.REQUEST),
            lambda: parse_duration(text, field="it"),
        )
        for reader in readers:
            try:
                assert 0 <= reader() <= LARGEST
                hits["read"] += 1
            except InvalidQuantity as error:
                hits["refused"] += error.field == "it" and error.allowed is not None
                hits["asked"] += 1

    check()
    assert hits["refused"] == hits["asked"]
    demand_hits(hits, "refused")
    demand_hits(hits, "read")


@pytest.mark.requirement("RES-005")
@given(number=st.one_of(st.floats(), st.booleans()))
@fixed
def test_floats_that_are_not_amounts_and_booleans_are_refused(number: float) -> None:
    try:
        read = parse_cpu(number, field="cpu", rounding=Rounding.REQUEST)
    except InvalidQuantity:
        return
    assert not isinstance(number, bool)
    assert Fraction(str(number)) * 1000 <= read


def test_what_exceeds_a_capacity_reads_larger_too() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(offered=st.integers(0, 2**52), excess=st.integers(1, 2**30))
    def check(offered: int, excess: int) -> None:
        wanted = bytes_text(offered + excess, rounding=Rounding.REQUEST)
        has = bytes_text(offered, rounding=Rounding.CAPACITY)
        assert shown_bytes(wanted) > shown_bytes(has)
        assert shown_bytes(has) <= offered
        hits["shown in the same unit"] += wanted.split()[1] == has.split()[1]

    check()
    demand_hits(hits, "shown in the same unit")


def shown_bytes(text: str) -> Fraction:
    number, unit = text.split()
    return Fraction(number) * SHOWN[unit]


@given(cores=st.integers(0, 10**7))
@fixed
def test_printed_cores_can_be_read_again(cores: int) -> None:
    assert parse_cpu(cpu_text(cores).split()[0], field="cpu", rounding=Rounding.REQUEST) == cores


@given(seed=seeds)
@fixed
def test_amounts_add_and_subtract_and_compare_alike(seed: int) -> None:
    rng = Random(seed)
    left, right = some_amounts(rng), some_amounts(rng)
    assert left.plus(right).minus(right) == left
    assert left.fits_in(left.plus(right))
    assert left.fits_in(right) is (left.shortfalls(right) == ())
    assert set(left.shortfalls(right)) == {
        name
        for name in ("cpu", "memory", "disk", "slots")
        if getattr(left, name) > getattr(right, name)
    }
