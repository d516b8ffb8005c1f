"""Fleets as people write them: quantities with units, unknown keys refused, every complaint placed.

`4` and `500m` are cores, `8Gi` is memory, `5m` a duration and `0.12` an amount of money. What a
document does not say has the default of `FleetSpec`.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from types import NoneType, UnionType
from typing import Annotated, Final, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from forgeyard.errors import InvalidFile, InvalidQuantity
from forgeyard.model.fleet import FleetSpec, Span
from forgeyard.model.location import Micros
from forgeyard.model.policy_entries import shown
from forgeyard.model.units import (
    LARGEST,
    Bytes,
    MilliCpu,
    Rounding,
    parse_bytes,
    parse_cpu,
    parse_duration,
)

MOST_FLEETS: Final = 100
"""In one document."""
MILLIONTHS: Final = 1_000_000
LONGEST_KEY: Final = 40
_UNSTORABLE: Final = frozenset(("\x00", *map(chr, range(0xD800, 0xE000))))
_SPEC: Final = TypeAdapter(FleetSpec)
_NEVER_SAID: Final = frozenset({"provenance"})
"""How something is known is not for a document to say."""


def read_all(document: object) -> tuple[FleetSpec, ...]:
    """Read a document of one fleet, or of several below `fleets`.

    Raises:
        InvalidFile: naming the field, what was given and what is allowed.
    """
    entries = _mapping(document, "")
    if "fleets" not in entries:
        return (_one(document, ""),)
    if set(entries) != {"fleets"}:
        other = next(key for key in entries if key != "fleets")
        raise _refusal(_key(other), None, "stands beside fleets", allowed="fleets alone")
    several = _several(entries["fleets"])
    return _apart([_one(one, f"fleets.{place}.") for place, one in enumerate(several)])


def read(document: object) -> FleetSpec:
    """Read a document of one fleet.

    Raises:
        InvalidFile: naming the field, what was given and what is allowed.
    """
    return _one(document, "")


def _several(given: object) -> list[object]:
    if not isinstance(given, list | tuple):
        raise _refusal("fleets", given, "is no list of fleets", allowed="a list of mappings")
    several = cast("list[object]", given)
    if not 0 < len(several) <= MOST_FLEETS:
        allowed = f"1 to {MOST_FLEETS} fleets"
        raise _refusal("fleets", len(several), "fleets are none, or too many", allowed=allowed)
    return several


def _apart(found: list[FleetSpec]) -> tuple[FleetSpec, ...]:
    names: set[str] = set()
    for place, spec in enumerate(found):
        if spec.name in names:
            field = f"fleets.{place}.name"
            raise _refusal(field, spec.name, "comes twice", allowed="each name once")
        names.add(spec.name)
    return tuple(found)


def _one(document: object, at: str) -> FleetSpec:
    plain = _part(FleetSpec, document, at)
    try:
        return _SPEC.validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = at + ".".join(str(part) for part in first["loc"] if part != "[key]")
        said = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        raise _refusal(
            path.removesuffix("."), first.get("input"), "is not allowed", allowed=said
        ) from None


def _part(kind: type[object], given: object, at: str) -> dict[str, object]:
    """Read one level of a document; `at` is its path with a dot, or empty."""
    entries = _mapping(given, at)
    hints = get_type_hints(kind, include_extras=True)
    names = [one.name for one in fields(cast("type[FleetSpec]", kind))]
    allowed = [name for name in names if name not in _NEVER_SAID]
    for key in entries:
        if key not in allowed:
            path = f"{at}{_key(key)}"
            raise InvalidFile(f"{path}: unknown key", field=path, allowed=", ".join(allowed))
    return {
        str(name): _read(hints[str(name)], value, f"{at}{name}") for name, value in entries.items()
    }


def _read(hint: object, given: object, path: str) -> object:
    """Turn what people write into what `FleetSpec` holds, where the two differ."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        wanted = next(one for one in arguments if one is not NoneType)
        return None if given is None else _read(wanted, given, path)
    if hint in (Span, Micros, MilliCpu, Bytes):
        return _quantity(hint, given, path)
    if origin is Annotated:
        return _read(arguments[0], given, path)
    if origin is tuple and isinstance(given, list | tuple):
        several = cast("list[object]", given)
        return [_read(arguments[0], one, f"{path}.{place}") for place, one in enumerate(several)]
    if isinstance(hint, type) and is_dataclass(hint):
        return _part(hint, given, f"{path}.")
    if origin is Mapping:
        return _words(given, path)
    return _leaf(given, path)


def _words(given: object, path: str) -> dict[str, object]:
    """Take numbers for the texts that they are written as: `2026` is a good value of a label."""
    return {
        str(name): str(value) if _is_number(value) else _leaf(value, f"{path}.{_key(name)}")
        for name, value in _mapping(given, f"{path}.").items()
    }


def _leaf(given: object, path: str) -> object:
    """Refuse what goes on where a document ends; how deep it goes is nobody's business then."""
    if _goes_on(given):
        raise _refusal(path, given, "is not allowed", allowed="one value")
    if isinstance(given, str) and any(one in _UNSTORABLE for one in given):
        raise _refusal(path, given, "cannot be stored", allowed="text without NUL and surrogates")
    return given


def _goes_on(given: object) -> bool:
    return isinstance(given, list | tuple | Mapping)


def _quantity(hint: object, given: object, path: str) -> int:
    if not isinstance(given, str) and not _is_number(given):
        raise _refusal(path, given, "is no quantity", allowed=_EXAMPLES[str(hint)])
    # A number comes from YAML as Python prints it; `1e-7` is none that people write.
    text = str(given)
    try:
        if hint == Span:
            return _duration(text, path)
        if hint == Micros:
            return _money(text, path)
        if hint is MilliCpu:
            return parse_cpu(text, field=path, rounding=Rounding.CAPACITY)
        return parse_bytes(text, field=path, rounding=Rounding.CAPACITY)
    except InvalidQuantity as error:
        raise _refusal(path, given, "cannot be read", allowed=error.allowed or "") from None


def _duration(text: str, path: str) -> int:
    """Read a duration; without a unit nobody could tell seconds from milliseconds."""
    if text != "0" and not text.strip()[-1:].isalpha():
        raise InvalidQuantity(path, field=path, allowed=_EXAMPLES[str(Span)])
    return 0 if text == "0" else parse_duration(text, field=path)


def _money(text: str, path: str) -> int:
    """Read an amount of money exactly, in millionths."""
    try:
        amount = Decimal(text.strip()) if len(text) <= LONGEST_KEY else Decimal(-1)
        millionths = amount * MILLIONTHS
        if amount.is_finite() and 0 <= millionths <= LARGEST and millionths % 1 == 0:
            return int(millionths)
    except ArithmeticError:
        pass
    raise InvalidQuantity(path, field=path, allowed=_EXAMPLES[str(Micros)])


_EXAMPLES: Final = {
    str(Span): "a duration such as 90s, 15m, 1h30m, or 0",
    str(Micros): "money such as 0.12, to millionths",
    str(MilliCpu): "cores such as 2, 0.5 or 500m",
    str(Bytes): "bytes such as 512K, 0.5Gi, 2G or 1048576",
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mapping(given: object, at: str) -> Mapping[object, object]:
    if isinstance(given, Mapping):
        return cast("Mapping[object, object]", given)
    path = at.removesuffix(".")
    raise _refusal(path, given, "is no mapping", allowed="a mapping of names to values")


def _key(key: object) -> str:
    return str(key)[:LONGEST_KEY]


def _refusal(path: str, given: object, what: str, *, allowed: str) -> InvalidFile:
    value = shown(given)
    where = f"{path}: " if path else ""
    return InvalidFile(f"{where}{value} {what}", field=path or None, value=value, allowed=allowed)
