"""What a new document would change about a fleet, field by field."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import cast

from forgeyard.model.fleet import FleetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that two documents say otherwise; `None` is not said at all."""

    field: str
    before: str | None
    after: str | None


def differences(before: FleetSpec | None, after: FleetSpec) -> tuple[Difference, ...]:
    """List every field in which two documents differ; against none, every field that is said."""
    old = {} if before is None else dict(_flat(asdict(before), ""))
    new = dict(_flat(asdict(after), ""))
    return tuple(
        Difference(field=field, before=old.get(field), after=new.get(field))
        for field in dict.fromkeys((*old, *new))
        if old.get(field) != new.get(field)
    )


def _flat(value: object, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in cast("Mapping[str, object]", value).items():
            yield from _flat(inner, f"{at}.{name}" if at else name)
    elif isinstance(value, tuple | list):
        for place, inner in enumerate(cast("tuple[object, ...]", value)):
            yield from _flat(inner, f"{at}.{place}")
    elif value is not None and value != "":
        yield at, str(value).lower() if isinstance(value, bool) else str(value)
