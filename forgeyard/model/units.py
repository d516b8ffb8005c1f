"""Integer quantities. A bare int never says whether it counts cores or bytes."""

import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from typing import NewType

from forgeyard.errors import InvalidQuantity

MilliCpu = NewType("MilliCpu", int)
Bytes = NewType("Bytes", int)
Millis = NewType("Millis", int)
"""Milliseconds: a duration, or an instant counted from 1970 in UTC."""

KIB, MIB, GIB = 2**10, 2**20, 2**30
LARGEST = 2**62

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
LEAST_IN_THOUSANDTHS = KIB
"""Of bytes: less than that in thousandths of a byte was surely meant as something else."""
_PRINTED = (("PiB", 2**50), ("TiB", 2**40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
_SECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Rounding(StrEnum):
    """Requests round up and capacity rounds down, so that neither side promises too much."""

    REQUEST = "request"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """An amount of each countable resource; `slots` counts jobs side by side (RES-004)."""

    cpu: MilliCpu = MilliCpu(0)
    memory: Bytes = Bytes(0)
    disk: Bytes = Bytes(0)
    slots: int = 0

    def fits_in(self, other: "Resources") -> bool:
        """Tell whether every dimension of this amount is available in `other`."""
        return (
            self.cpu <= other.cpu
            and self.memory <= other.memory
            and self.disk <= other.disk
            and self.slots <= other.slots
        )

    def shortfalls(self, other: "Resources") -> tuple[str, ...]:
        """Name the dimensions in which `other` has too little."""
        pairs = (
            ("cpu", self.cpu, other.cpu),
            ("memory", self.memory, other.memory),
            ("disk", self.disk, other.disk),
            ("slots", self.slots, other.slots),
        )
        return tuple(name for name, wanted, offered in pairs if wanted > offered)

    def plus(self, other: "Resources") -> "Resources":
        """Add `other`, dimension by dimension."""
        return Resources(
            cpu=MilliCpu(self.cpu + other.cpu),
            memory=Bytes(self.memory + other.memory),
            disk=Bytes(self.disk + other.disk),
            slots=self.slots + other.slots,
        )

    def times(self, count: int) -> "Resources":
        """Tell what so many of these are together."""
        return Resources(
            cpu=MilliCpu(self.cpu * count),
            memory=Bytes(self.memory * count),
            disk=Bytes(self.disk * count),
            slots=self.slots * count,
        )

    def within(self, other: "Resources") -> "Resources":
        """Cut every dimension down to what `other` has."""
        return Resources(
            cpu=min(self.cpu, other.cpu),
            memory=min(self.memory, other.memory),
            disk=min(self.disk, other.disk),
            slots=min(self.slots, other.slots),
        )

    def minus(self, other: "Resources") -> "Resources":
        """Subtract `other`, dimension by dimension; may go below zero."""
        return Resources(
            cpu=MilliCpu(self.cpu - other.cpu),
            memory=Bytes(self.memory - other.memory),
            disk=Bytes(self.disk - other.disk),
            slots=self.slots - other.slots,
        )


def parse_cpu(text: str | int | float, *, field: str, rounding: Rounding) -> MilliCpu:
    """Read `2`, `0.5` or `500m` as thousandths of a core.

    Raises:
        InvalidQuantity: naming the field, when it is not a positive finite amount.
    """
    allowed = "cores such as 2, 0.5 or 500m"
    written = str(text).strip()
    if isinstance(text, bool):
        raise _unreadable("cpu", field, text, allowed)
    if written.endswith("m"):
        return MilliCpu(_whole(written[:-1], 1, rounding, ("cpu", field, text, allowed)))
    return MilliCpu(_whole(written, 1000, rounding, ("cpu", field, text, allowed)))


def parse_bytes(text: str | int | float, *, field: str, rounding: Rounding) -> Bytes:
    """Read `512K`, `0.5Gi`, `2G`, a plain number or thousandths with an `m` as bytes.

    Raises:
        InvalidQuantity: naming the field, when it is not a positive finite amount.
    """
    complaint = ("size", field, text, "bytes such as 512K, 0.5Gi, 2G or 1048576")
    written = str(text).strip().removesuffix("B")
    if isinstance(text, bool):
        raise _unreadable(*complaint)
    for suffix, factor in (*_BINARY.items(), *_DECIMAL.items()):
        if written.endswith(suffix):
            return Bytes(_whole(written.removesuffix(suffix), factor, rounding, complaint))
    if str(text).strip().endswith("m"):
        return Bytes(_thousandths(written.removesuffix("m"), rounding, complaint))
    return Bytes(_whole(written, 1, rounding, complaint))


def parse_duration(text: str | int | float, *, field: str) -> Millis:
    """Read `90s`, `15m`, `1h30m` or plain seconds as milliseconds.

    Raises:
        InvalidQuantity: naming the field, when it is not a positive finite duration.
    """
    complaint = ("duration", field, text, "durations such as 90s, 15m, 1h30m")
    written = str(text).strip()
    if isinstance(text, bool):
        raise _unreadable(*complaint)
    if not written.endswith(tuple("smhd")):
        return Millis(_whole(written, 1000, Rounding.REQUEST, complaint))
    total, number = 0, ""
    rest = written
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:digits], rest[digits:]
        suffix = next((s for s in _SECONDS if rest.startswith(s)), None)
        if suffix is None or not number:
            raise _unreadable(*complaint)
        total += _whole(number, _SECONDS[suffix], Rounding.REQUEST, complaint)
        rest = rest.removeprefix(suffix)
    if total > LARGEST:
        raise _unreadable(*complaint)
    return Millis(total)


def duration_text(duration: int) -> str:
    """Print a duration exactly, in the one largest unit that fits; `parse_duration` reads it."""
    units = sorted(_SECONDS.items(), key=lambda unit: -unit[1])
    name, size = next(unit for unit in units if duration % unit[1] == 0)
    return f"{duration // size}{name}" if duration else "0s"


def brief_duration(duration: int) -> str:
    """Write a duration for people, in at most two units: `40s`, `3m 10s`, `24h 0m`, `2d 4h`."""
    seconds = max(0, duration) // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m {seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def _thousandths(digits: str, rounding: Rounding, complaint: tuple[str, str, object, str]) -> int:
    """Read thousandths of bytes, as Kubernetes writes amounts; `512m` was meant as `512M`."""
    found = _whole(digits, Fraction(1, 1000), rounding, complaint)
    if found < LEAST_IN_THOUSANDTHS:
        raise _unreadable(*complaint)
    return found


def _whole(
    digits: str, factor: int | Fraction, rounding: Rounding, complaint: tuple[str, str, object, str]
) -> int:
    """Multiply exactly, then round in the direction that promises less."""
    if not digits or len(digits) > 40 or not set(digits) <= set("0123456789."):
        raise _unreadable(*complaint)
    try:
        exact = Fraction(Decimal(digits)) * factor
    except InvalidOperation:
        raise _unreadable(*complaint) from None
    if exact > LARGEST:
        raise _unreadable(*complaint)
    return math.ceil(exact) if rounding is Rounding.REQUEST else math.floor(exact)


def _unreadable(kind: str, field: str, value: object, allowed: str) -> InvalidQuantity:
    return InvalidQuantity(
        f"{field}: cannot read {value!r} as a {kind}", field=field, value=value, allowed=allowed
    )


def bytes_text(amount: int, *, rounding: Rounding) -> str:
    """Print an amount of bytes to two decimals, rounded like what it is.

    A request that exceeds a capacity therefore always reads larger, too.
    """
    name, unit = next(((name, unit) for name, unit in _PRINTED if amount >= unit), ("B", 1))
    hundredths, rest = divmod(max(amount, 0) * 100, unit)
    if rest and rounding is Rounding.REQUEST:
        hundredths += 1
    return f"{_trimmed(hundredths, 2)} {name}"


def cpu_text(amount: int) -> str:
    """Print an amount of CPU in cores, exactly."""
    cores = _trimmed(max(amount, 0), 3)
    return f"{cores} core" if cores == "1" else f"{cores} cores"


def _trimmed(scaled: int, places: int) -> str:
    """Print a decimal number that was scaled by a power of ten, without idle zeros."""
    whole, part = divmod(scaled, 10**places)
    digits = f"{part:0{places}d}".rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)
