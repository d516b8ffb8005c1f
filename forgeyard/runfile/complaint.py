"""Turns what pydantic found wrong with a run file into one sentence for its author."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from forgeyard.errors import InvalidRunFile, shortened
from forgeyard.runfile.schema import keys_at
from forgeyard.runfile.values import FORMS, SAID

Path = tuple[str | int, ...]
NONE: Mapping[str | int, str] = MappingProxyType({})

_SHAPES = {
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "bool_type": "true or false",
    "int_type": "a whole number",
}
_FORMS = {
    "needs": "a name or a list of names",
    "toolchains": "a list of names or a mapping of names to versions",
    "runtimes": "a list of names or a mapping of names to versions",
    "gpu": "one request or a list of them",
    "outputs": "a list, or a mapping of names to paths",
}


def complain(
    error: ValidationError, *, at: Path = (), origins: Mapping[str | int, str] = NONE
) -> InvalidRunFile:
    """Make the typed error of the most telling problem; unknown keys explain missing ones.

    `at` is the path of what was validated; `origins` names the jobs that cells were made from.
    """
    details = error.errors(include_url=False)
    worst = next((one for one in details if one["type"] == "extra_forbidden"), details[0])
    path = (*at, *_path(worst["loc"]))
    if path[:1] == ("jobs",) and len(path) > 1:
        path = ("jobs", origins.get(path[1], path[1]), *path[2:])
    message, allowed = _sentence(worst, path)
    others = len(details) - 1
    more = f" (and {others} more problem{'s' if others > 1 else ''})" if others else ""
    return InvalidRunFile(
        f"{dotted(path) or 'the run file'}: {message}{more}",
        field=dotted(path) or None,
        value=None if worst["type"] == "missing" else shown(worst["input"]),
        allowed=allowed,
    )


def dotted(path: Iterable[str | int]) -> str:
    """Write a path as people do: `jobs.lint.steps.0.run`."""
    return ".".join(shown(part) for part in path)


def shown(value: object) -> str:
    """Print a value for an error message: never deep, never long, nothing a terminal obeys."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very large number"
    text = shortened(value)
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def closest(word: str, words: Iterable[str]) -> str:
    """Offer the known word that was probably meant, as the end of a sentence."""
    known, wanted = list(words), word[:100].lower()
    begun = [one for one in known if len(wanted) > 2 and one.startswith(wanted)]
    found = begun or difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _path(loc: Path) -> Path:
    return tuple(part for part in loc if part not in FORMS and part != "[key]")


def _sentence(error: ErrorDetails, path: Path) -> tuple[str, str | None]:
    """Say what is wrong and what would be right."""
    kind, limits = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        keys = keys_at(path[:-1])
        return f"unknown key{closest(str(path[-1]), keys)}", ", ".join(keys)
    if kind == "missing":
        return "this key is missing", ", ".join(keys_at(path[:-1]))
    if kind in ("enum", "literal_error"):
        words = [word for word in str(limits.get("expected", "")).split("'") if word.isidentifier()]
        return f"{shown(error['input'])!r} is not known{_meant(error, words)}", ", ".join(words)
    if kind == "string_pattern_mismatch":
        said = SAID.get(str(limits.get("pattern")), str(limits.get("pattern")))
        return f"{shown(error['input'])!r} is not allowed", said
    if kind == "string_type":
        return _not_text(error["input"])
    if kind.startswith("union_tag"):
        allowed = _FORMS.get(str(path[-1]), "another form")
        return f"must be {allowed}, not {_kind(error['input'])}", allowed
    if kind in _SHAPES:
        return f"must be {_SHAPES[kind]}, not {_kind(error['input'])}", _SHAPES[kind]
    if kind == "invalid_key":
        return "keys must be text: write the key in quotes", "text"
    return _limit(error)


def _meant(error: ErrorDetails, words: Sequence[str]) -> str:
    return closest(error["input"], words) if isinstance(error["input"], str) else ""


def _not_text(value: object) -> tuple[str, str]:
    if value is None:
        return "has no value", 'text; "" for none'
    if isinstance(value, bool | int | float):
        return f"must be text, not {_kind(value)}: write it in quotes", f'"{shown(value)}"'
    return f"must be text, not {_kind(value)}", "text"


def _limit(error: ErrorDetails) -> tuple[str, str | None]:
    limits = error.get("ctx", {})
    if error["type"] == "too_long":
        actual = limits.get("actual_length") or len(error["input"])
        return f"has {actual} entries", f"at most {limits['max_length']} entries"
    if error["type"] == "too_short":
        return "is empty", f"at least {limits['min_length']} entry"
    if error["type"] == "string_too_long":
        return f"has {len(error['input'])} characters", f"at most {limits['max_length']} characters"
    if error["type"] == "string_too_short":
        return "is empty", "text"
    if error["type"] in ("greater_than_equal", "less_than_equal"):
        bound = f"at least {limits['ge']}" if "ge" in limits else f"at most {limits['le']}"
        return f"{shown(error['input'])} is out of range", bound
    if error["type"] == "quantity":
        return f"{shown(error['input'])} is no amount", error["msg"]
    if error["type"] == "matrix_value":
        return f"{shown(error['input'])!r} cannot be a value of a matrix", error["msg"]
    if error["type"] == "string_unicode":
        return "is not valid text", "text without lone surrogates"
    return error["msg"], None


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    kinds = ((bool, "true or false"), (int | float, "a number"), (str, "text"), (dict, "a mapping"))
    return next((said for kind, said in kinds if isinstance(value, kind)), "a list")
