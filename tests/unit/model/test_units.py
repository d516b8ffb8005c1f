from collections.abc import Callable

import pytest

from forgeyard.errors import InvalidQuantity
from forgeyard.model.units import (
    GIB,
    LARGEST,
    MIB,
    Bytes,
    MilliCpu,
    Resources,
    Rounding,
    brief_duration,
    bytes_text,
    cpu_text,
    parse_bytes,
    parse_cpu,
    parse_duration,
)

FIELD = "jobs.a.resources.cpu"
READERS: tuple[Callable[[object], int], ...] = (
    lambda text: parse_cpu(text, field=FIELD, rounding=Rounding.REQUEST),
    lambda text: parse_bytes(text, field=FIELD, rounding=Rounding.REQUEST),
    lambda text: parse_duration(text, field=FIELD),
)


@pytest.mark.requirement("RES-005")
@pytest.mark.parametrize(
    ("text", "cores"),
    [("2", 2_000), (2, 2_000), (0.5, 500), ("0.5", 500), ("500m", 500), (" 1.5 ", 1_500), (0, 0)],
)
def test_cpu_is_read_as_thousandths_of_a_core(text: str | float, cores: int) -> None:
    assert parse_cpu(text, field="cpu", rounding=Rounding.REQUEST) == cores


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512K", 512_000),
        ("512Ki", 524_288),
        ("0.5Gi", GIB // 2),
        ("0.5GiB", GIB // 2),
        ("2G", 2 * 10**9),
        ("2GB", 2 * 10**9),
        (1_048_576, MIB),
        ("1Pi", 2**50),
        ("644245094400m", 644_245_094),
    ],
)
def test_sizes_are_read_as_bytes(text: str | int, size: int) -> None:
    assert parse_bytes(text, field="memory", rounding=Rounding.CAPACITY) == size


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("90s", 90_000),
        ("15m", 900_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("250ms", 250),
        ("1d", 86_400_000),
        (30, 30_000),
        ("0.5", 500),
    ],
)
def test_durations_are_read_as_milliseconds(text: str | int, millis: int) -> None:
    assert parse_duration(text, field="timeout") == millis


def test_a_request_rounds_up_and_capacity_down() -> None:
    assert parse_cpu("0.0001", field="cpu", rounding=Rounding.REQUEST) == 1
    assert parse_cpu("0.0001", field="cpu", rounding=Rounding.CAPACITY) == 0
    assert parse_bytes("0.3Ki", field="disk", rounding=Rounding.REQUEST) == 308
    assert parse_bytes("0.3Ki", field="disk", rounding=Rounding.CAPACITY) == 307
    assert parse_bytes("644245094400m", field="disk", rounding=Rounding.REQUEST) == 644_245_095


@pytest.mark.case("SP-021")
@pytest.mark.parametrize("text", ["512m", "1022999m", "1024000mB", "m", ".m"])
def test_thousandths_of_bytes_that_were_surely_meant_otherwise_are_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_bytes(text, field="memory", rounding=Rounding.REQUEST)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-1", "+1", "1e3", "0x10", "nan", "inf", "two", "1,5", "1.2.3", ".", "1 G"),
        *("500mm", "m", "Gi", "\u0661", "9" * 41, str(LARGEST + 1), True, 1e30, float("nan")),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_names_its_field_its_value_and_what_would_do(
    reader: Callable[[object], int], text: object
) -> None:
    with pytest.raises(InvalidQuantity) as refused:
        reader(text)
    error = refused.value
    assert error.field == FIELD
    assert error.value is not None
    assert error.allowed


@pytest.mark.parametrize("text", ["1h30", "h", "1x", "1hm", "99999999999999d", "1h-5m"])
def test_a_malformed_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity) as refused:
        parse_duration(text, field="timeout")
    assert refused.value.field == "timeout"


@pytest.mark.parametrize(
    ("amount", "asked", "offered"),
    [
        (0, "0 B", "0 B"),
        (-5, "0 B", "0 B"),
        (1023, "1023 B", "1023 B"),
        (1536, "1.5 KiB", "1.5 KiB"),
        (16 * GIB, "16 GiB", "16 GiB"),
        (16 * GIB + 1, "16.01 GiB", "16 GiB"),
        (2 * 10**9, "1.87 GiB", "1.86 GiB"),
    ],
)
def test_sizes_are_printed_in_the_direction_they_promise(
    amount: int, asked: str, offered: str
) -> None:
    assert bytes_text(amount, rounding=Rounding.REQUEST) == asked
    assert bytes_text(amount, rounding=Rounding.CAPACITY) == offered


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1_000, "1 core"), (1_500, "1.5 cores"), (250, "0.25 cores"), (0, "0 cores"), (-1, "0 cores")],
)
def test_cores_are_printed_exactly(amount: int, text: str) -> None:
    assert cpu_text(amount) == text


def some(cpu: int, memory: int, disk: int, slots: int) -> Resources:
    return Resources(cpu=MilliCpu(cpu), memory=Bytes(memory), disk=Bytes(disk), slots=slots)


@pytest.mark.requirement("RES-004")
def test_amounts_compare_dimension_by_dimension() -> None:
    assert some(1, 2, 3, 4).fits_in(some(1, 2, 3, 4))
    assert some(2, 9, 1, 1).shortfalls(some(1, 10, 0, 1)) == ("cpu", "disk")
    assert some(1, 1, 1, 1).minus(some(2, 0, 0, 0)) == some(-1, 1, 1, 1)
    assert some(1, 2, 3, 4).plus(some(1, 1, 1, 1)) == some(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (40, "40s"),
        (190, "3m 10s"),
        (3_600, "1h 0m"),
        (172_799, "47h 59m"),
        (172_800, "2d 0h"),
    ],
)
def test_a_duration_for_people_has_at_most_two_units(seconds: int, text: str) -> None:
    assert brief_duration(seconds * 1_000) == text
