"""Amounts in what agents report: a number of the smallest unit, or text with a unit.

Agents of ours send numbers. What else describes a machine, such as a cloud's own listing, writes
`1.5Ti` or thousandths of bytes; it is rounded like capacity, so that nothing is promised twice.
"""

from collections.abc import Mapping
from typing import Annotated, cast

from pydantic import BeforeValidator

from forgeyard.model.protocol import Heartbeat, Register
from forgeyard.model.units import Rounding, parse_bytes, parse_cpu

_READERS = {"cpu": parse_cpu, "memory": parse_bytes, "disk": parse_bytes}


def _read_report(given: object) -> object:
    """Turn amounts that are text into numbers; the shape of everything is judged later.

    Raises:
        InvalidQuantity: naming the field, when a text is no amount.
    """
    if not isinstance(given, Mapping):
        return given
    body = cast("Mapping[str, object]", given)
    rounding = {"total": Rounding.CAPACITY, "headroom": Rounding.REQUEST}
    parts = {name: _read(name, body[name], how) for name, how in rounding.items() if name in body}
    return {**body, **parts}


def _read(part: str, given: object, rounding: Rounding) -> object:
    if not isinstance(given, Mapping):
        return given
    amounts = cast("Mapping[str, object]", given)
    return {
        name: _READERS[name](value, field=f"{part}.{name}", rounding=rounding)
        if isinstance(value, str) and name in _READERS
        else value
        for name, value in amounts.items()
    }


def _read_heartbeat(given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    body = cast("Mapping[str, object]", given)
    return {**body, "report": _read_report(body["report"])} if "report" in body else body


RegisterBody = Annotated[Register, BeforeValidator(_read_report)]
HeartbeatBody = Annotated[Heartbeat, BeforeValidator(_read_heartbeat)]
