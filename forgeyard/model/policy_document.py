"""A policy as people write it: numbers and rules, held to their shape, ranges and relations.

What is left out has its default. Durations are text with a unit, such as `30s`, or a number of
milliseconds. Every complaint names the field, what was given and what is allowed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from forgeyard.errors import InvalidPolicy, InvalidQuantity
from forgeyard.model.policy import SchedulingPolicy, Setting
from forgeyard.model.policy_entries import LONGEST_TEXT, mapping_of, read_entry, shown
from forgeyard.model.units import Millis, duration_text, parse_duration

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of the policy: where it stands, and what may stand there."""

    path: str
    setting: Setting
    is_duration: bool
    default: int

    def text(self, value: int) -> str:
        """Print a value of this number as a document may hold it."""
        return duration_text(value) if self.is_duration else str(value)

    @property
    def allowed(self) -> str:
        """Say what may stand here."""
        least, most = self.text(self.setting.least), self.text(self.setting.most)
        kind = "a duration" if self.is_duration else "a whole number"
        return f"{kind} from {least} to {most}"


def read(document: object) -> SchedulingPolicy:
    """Read a policy, with defaults for whatever it does not say.

    Raises:
        InvalidPolicy: naming the field, when a key is unknown or a value is not allowed.
    """
    policy = _part(SchedulingPolicy, document, "")
    _check_relations(policy)
    _check_names(policy)
    return policy


def written(policy: SchedulingPolicy) -> dict[str, object]:
    """Write a whole policy as JSON has it, durations in milliseconds; `read` gives it back."""
    return cast("dict[str, object]", json.loads(json.dumps(asdict(policy))))


def numbers() -> tuple[Number, ...]:
    """List every number there is, in the order of the document."""
    return tuple(_numbers(SchedulingPolicy, asdict(SchedulingPolicy()), ""))


def _numbers(kind: type[object], defaults: Mapping[str, Any], at: str) -> Iterator[Number]:
    for name, hint in _hints(kind).items():
        if _is_part(hint):
            yield from _numbers(hint, defaults[name], f"{at}{name}.")
        elif _is_number(hint):
            yield _number(f"{at}{name}", hint, defaults[name])


def _number(path: str, hint: object, default: int) -> Number:
    assert get_origin(hint) is Annotated
    unit, setting = get_args(hint)
    return Number(path=path, setting=setting, is_duration=unit is Millis, default=default)


def _is_part(hint: object) -> TypeGuard[type[object]]:
    """Tell a level of the document from a number in it."""
    return isinstance(hint, type) and is_dataclass(hint)


def _is_number(hint: object) -> bool:
    return get_origin(hint) is Annotated and isinstance(get_args(hint)[1], Setting)


def _hints(kind: type[object]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _part(kind: type[Part], given: object, at: str) -> Part:
    """Read one level of the document; `at` is its path with a dot, or empty."""
    hints = _hints(kind)
    entries = mapping_of(given, at)
    for key in entries:
        if key not in hints:
            path = f"{at}{str(key)[:LONGEST_TEXT]}"
            raise InvalidPolicy(f"{path}: unknown key", field=path, allowed=", ".join(hints))
    values = {
        name: _read(hint, entries[name], f"{at}{name}")
        for name, hint in hints.items()
        if name in entries
    }
    for field in fields(cast("Any", kind)):
        if field.name not in values and field.default is field.default_factory is MISSING:
            path = f"{at}{field.name}"
            raise InvalidPolicy(f"{path}: is missing", field=path, allowed="to be there")
    return kind(**values)


def _read(hint: object, given: object, path: str) -> object:
    """Read whatever stands at one path."""
    if _is_part(hint):
        return _part(hint, given, f"{path}.")
    if _is_number(hint):
        return _value(_number(path, hint, 0), given)
    return read_entry(hint, given, path, part=_part)


def _value(number: Number, given: object) -> int:
    value = _milliseconds(number, given) if isinstance(given, str) else given
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(number, given, f"is not {number.allowed.split(' from ')[0]}")
    if not number.setting.least <= value <= number.setting.most:
        raise _refusal(number, given, "is out of range")
    return value


def _milliseconds(number: Number, text: str) -> Millis | None:
    """Read a duration; without a unit nobody could tell seconds from milliseconds."""
    if not number.is_duration or len(text) > LONGEST_TEXT or not text.strip()[-1:].isalpha():
        return None
    try:
        return parse_duration(text, field=number.path)
    except InvalidQuantity:
        return None


def _refusal(number: Number, given: object, what: str) -> InvalidPolicy:
    return InvalidPolicy(
        f"{number.path}: {shown(given)} {what}",
        field=number.path,
        value=shown(given),
        allowed=number.allowed,
    )


def _check_relations(policy: SchedulingPolicy) -> None:
    """Refuse numbers that are fine alone and break the protocol together."""
    lease = policy.lease
    ttl, whole = "lease.execution_ttl", lease.execution_ttl + lease.connectivity_grace
    together = f"{ttl} and lease.connectivity_grace together"
    spare = whole - lease.renew_every - lease.longest_back_off
    rules = (
        # One renewal that gets lost must not cost the lease.
        ("lease.renew_every", lease.renew_every, lease.execution_ttl // 2, f"half of {ttl}"),
        ("lease.longest_back_off", lease.longest_back_off, lease.execution_ttl, ttl),
        # The sweep notices that a runner is silent before it takes the runner's leases away.
        (
            "lease.session_silence",
            lease.session_silence,
            whole - policy.sweep.period,
            f"{together}, less sweep.period",
        ),
        # A shorter outage of ours is not bridged, so that leases have to outlast it by themselves.
        (
            "sweep.renewal_gap",
            policy.sweep.renewal_gap,
            spare,
            f"{together}, less lease.renew_every and lease.longest_back_off",
        ),
    )
    for path, value, most, what in rules:
        if value > most:
            raise InvalidPolicy(
                f"{path}: {duration_text(value)} is more than {what}",
                field=path,
                value=duration_text(value),
                allowed=f"at most {duration_text(most)}, {what}",
            )


def _check_names(policy: SchedulingPolicy) -> None:
    """Refuse two rules of one name: nobody could tell which of them asked for something."""
    names = [rule.name for rule in policy.rules]
    for place, name in enumerate(names):
        if name in names[:place]:
            field = f"rules.{place}.name"
            raise InvalidPolicy(
                f"{field}: {name!r} comes twice", field=field, value=name, allowed="each name once"
            )
