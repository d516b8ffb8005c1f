"""Frozen dataclasses to JSON text and back, checked on the way in."""

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
        raise Corrupt(f"stored {kind} cannot be read: {error.errors()[0]['msg']}") from error
