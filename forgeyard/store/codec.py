"""Frozen dataclasses to JSON text and back, checked on the way in."""

import json
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from forgeyard.errors import Corrupt

T = TypeVar("T")


@lru_cache(maxsize=64)
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("type[Any]", kind))


def encode(value: object, kind: Hashable = None) -> str:
    """Write a dataclass, or with `kind` any annotated shape, as compact JSON."""
    return (
        _adapter(cast("Hashable", type(value)) if kind is None else kind).dump_json(value).decode()
    )


def decode(kind: type[T], text: str | bytes) -> T:
    """Read JSON text that `encode` wrote.

    Raises:
        Corrupt: the stored text does not have that shape.
    """
    try:
        return cast("T", _adapter(cast("Hashable", kind)).validate_json(text))
    except ValidationError as error:
        raise _corrupt(kind, error) from error


def decode_part(kind: type[T], text: str | bytes, name: str) -> T:
    """Read one field of what `encode` wrote, without the cost of checking the others.

    Raises:
        Corrupt: the text is no JSON object, or its field does not have that shape.
    """
    try:
        part = json.loads(text)[name]
        return cast("T", _adapter(cast("Hashable", kind)).validate_python(part))
    except ValidationError as error:
        raise _corrupt(kind, error) from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Corrupt(f"stored {kind} cannot be read: {error}") from error


def _corrupt(kind: object, error: ValidationError) -> Corrupt:
    return Corrupt(f"stored {kind} cannot be read: {error.errors()[0]['msg']}")
