"""A policy as people write it: a mapping of numbers, held to its shape, ranges and relations.

What is left out has its default. Durations are text with a unit, such as `30s`, or a number of
milliseconds. Every complaint names the field, what was given and what is allowed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import (
    Annotated,
    Any,
    Final,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from forgeyard.errors import InvalidPolicy, InvalidQuantity
from forgeyard.model.policy import SchedulingPolicy, Setting
from forgeyard.model.units import Millis, duration_text, parse_duration

Part = TypeVar("Part")
LONGEST_TEXT: Final = 40


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
    return policy


def written(policy: SchedulingPolicy) -> dict[str, object]:
    """Write a whole policy, durations in milliseconds; `read` gives it back."""
    return asdict(policy)


def numbers() -> tuple[Number, ...]:
    """List every number there is, in the order of the document."""
    return tuple(_numbers(SchedulingPolicy, asdict(SchedulingPolicy()), ""))


def _numbers(kind: type[object], defaults: Mapping[str, Any], at: str) -> Iterator[Number]:
    for name, hint in _hints(kind).items():
        if _is_part(hint):
            yield from _numbers(hint, defaults[name], f"{at}{name}.")
        else:
            yield _number(f"{at}{name}", hint, defaults[name])


def _number(path: str, hint: object, default: int) -> Number:
    assert get_origin(hint) is Annotated
    unit, setting = get_args(hint)
    return Number(path=path, setting=setting, is_duration=unit is Millis, default=default)


def _is_part(hint: object) -> TypeGuard[type[object]]:
    """Tell a level of the document from a number in it."""
    return isinstance(hint, type) and is_dataclass(hint)


def _hints(kind: type[object]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _part(kind: type[Part], given: object, at: str) -> Part:
    """Read one level of the document; `at` is its path with a dot, or empty."""
    hints = _hints(kind)
    entries = _mapping(given, at)
    for key in entries:
        if key not in hints:
            path = f"{at}{str(key)[:LONGEST_TEXT]}"
            raise InvalidPolicy(f"{path}: unknown key", field=path, allowed=", ".join(hints))
    values = {
        name: _part(hint, entries[name], f"{at}{name}.")
        if _is_part(hint)
        else _value(_number(f"{at}{name}", hint, 0), entries[name])
        for name, hint in hints.items()
        if name in entries
    }
    return kind(**values)


def _mapping(given: object, at: str) -> Mapping[object, object]:
    if isinstance(given, Mapping):
        return cast("Mapping[object, object]", given)
    path = at.removesuffix(".")
    raise InvalidPolicy(
        f"{path or 'the policy'}: must be a mapping",
        field=path or None,
        value=_shown(given),
        allowed="a mapping of names to values",
    )


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
        f"{number.path}: {_shown(given)} {what}",
        field=number.path,
        value=_shown(given),
        allowed=number.allowed,
    )


def _shown(given: object) -> str:
    """Print a value for an error message: never deep, never long."""
    if isinstance(given, str):
        return repr(given) if len(given) <= LONGEST_TEXT else f"{given[:LONGEST_TEXT]!r}…"
    if isinstance(given, int) and not isinstance(given, bool) and given.bit_length() > 64:
        return "a very large number"
    if given is None or isinstance(given, bool):
        return "nothing" if given is None else str(given).lower()
    if isinstance(given, int | float):
        return str(given)
    return "a mapping" if isinstance(given, Mapping) else "a list"


def _check_relations(policy: SchedulingPolicy) -> None:
    """Refuse numbers that are fine alone and break the protocol together."""
    lease = policy.lease
    rules = (
        # One renewal that gets lost must not cost the lease.
        ("lease.renew_every", lease.renew_every, lease.execution_ttl // 2, "half of "),
        ("lease.longest_back_off", lease.longest_back_off, lease.execution_ttl, ""),
    )
    for path, value, most, part in rules:
        if value > most:
            raise InvalidPolicy(
                f"{path}: {duration_text(value)} is more than {part}lease.execution_ttl",
                field=path,
                value=duration_text(value),
                allowed=f"at most {duration_text(most)}, {part}lease.execution_ttl",
            )
