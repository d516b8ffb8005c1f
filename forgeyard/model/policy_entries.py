"""What stands in a policy beside numbers: words, choices, and lists of them.

Read by the types of the dataclasses that they go into, so that each is said once.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Final, Union, cast, get_args, get_origin

from annotated_types import MaxLen

from forgeyard.errors import InvalidPolicy

LONGEST_TEXT: Final = 40
LONGEST_WORD: Final = 128
ReadPart = Callable[[type[object], object, str], object]


def read_entry(hint: object, given: object, path: str, *, part: ReadPart) -> object:
    """Read what a type asks for at a path; `part` reads the levels of the document below it.

    Raises:
        InvalidPolicy: naming the field, what was given and what is allowed.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(hint, given, path, part=part)
    if origin in (Union, UnionType):
        (wanted,) = (one for one in arguments if one is not NoneType)
        return None if given is None else read_entry(wanted, given, path, part=part)
    if origin is tuple:
        return _several(arguments[0], given, path, part=part)
    if origin is Mapping:
        entries = mapping_of(given, f"{path}.")
        return {
            _word(name, path): _word(value, f"{path}.{shown(name)}")
            for name, value in entries.items()
        }
    if hint is bool:
        return _yes_or_no(given, path)
    if hint is str:
        return _word(given, path)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice(hint, given, path)
    return part(cast("type[object]", hint), given, f"{path}.")


def _bounded(hint: object, given: object, path: str, *, part: ReadPart) -> object:
    """Read an entry whose length has a limit."""
    wanted, *bounds = get_args(hint)
    most = next(bound.max_length for bound in bounds if isinstance(bound, MaxLen))
    count = _count(given)
    if count > most:
        raise _refusal(path, count, "entries are too many", allowed=f"at most {most} entries")
    return read_entry(wanted, given, path, part=part)


def _count(given: object) -> int:
    return len(cast("list[object]", given)) if isinstance(given, list | tuple | Mapping) else 0


def _several(hint: object, given: object, path: str, *, part: ReadPart) -> tuple[object, ...]:
    """Read a list, or one word that stands for a list of one."""
    if isinstance(given, str):
        return (read_entry(hint, given, path, part=part),)
    if not isinstance(given, list | tuple):
        raise _refusal(path, given, "is not a list", allowed="a list")
    values = cast("list[object]", given)
    return tuple(
        read_entry(hint, value, f"{path}.{place}", part=part) for place, value in enumerate(values)
    )


def _word(given: object, path: str) -> str:
    if isinstance(given, str) and 0 < len(given) <= LONGEST_WORD and given.isprintable():
        return given
    allowed = f"1 to {LONGEST_WORD} printable characters"
    raise _refusal(path, given, "is not a word", allowed=allowed)


def _yes_or_no(given: object, path: str) -> bool:
    if isinstance(given, bool):
        return given
    raise _refusal(path, given, "is neither true nor false", allowed="true or false")


def _choice(kind: type[StrEnum], given: object, path: str) -> StrEnum:
    found = next((one for one in kind if one.value == given), None)
    if found is None:
        allowed = ", ".join(one.value for one in kind)
        raise _refusal(path, given, "is not one of them", allowed=allowed)
    return found


def _refusal(path: str, given: object, what: str, *, allowed: str) -> InvalidPolicy:
    value = shown(given)
    return InvalidPolicy(f"{path}: {value} {what}", field=path, value=value, allowed=allowed)


def mapping_of(given: object, at: str) -> Mapping[object, object]:
    """Take a level of the document for a mapping; `at` is its path with a dot, or empty."""
    if isinstance(given, Mapping):
        return cast("Mapping[object, object]", given)
    path = at.removesuffix(".")
    raise InvalidPolicy(
        f"{path or 'the policy'}: must be a mapping",
        field=path or None,
        value=shown(given),
        allowed="a mapping of names to values",
    )


def shown(given: object) -> str:
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
