"""Reading a policy accepts exactly what it would write itself, and invents nothing."""

import json
from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from forgeyard.errors import InvalidPolicy
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.policy_document import Number, numbers, read, written
from forgeyard.model.units import duration_text, parse_duration

NUMBERS = {number.path: number for number in numbers()}
NEAR = st.integers(-2, 2)


def in_range(number: Number) -> st.SearchStrategy[int]:
    return st.integers(number.setting.least, number.setting.most)


def around(number: Number) -> st.SearchStrategy[int]:
    """Draw a value inside the range, or just outside of it."""
    ends = st.sampled_from([number.setting.least, number.setting.most])
    return in_range(number) | st.builds(lambda end, by: end + by, ends, NEAR)


def nested(flat: dict[str, object]) -> dict[str, object]:
    """Put dotted paths where they belong."""
    document: dict[str, object] = {}
    for path, value in flat.items():
        *groups, name = path.split(".")
        place = document
        for group in groups:
            inner = place.setdefault(group, {})
            assert isinstance(inner, dict)
            place = inner
        place[name] = value
    return document


DOCUMENTS = st.fixed_dictionaries(
    {}, optional={path: around(number) for path, number in NUMBERS.items()}
)


def is_allowed(flat: dict[str, int]) -> bool:
    """Say by the ranges and the four relations whether a document is to be accepted."""
    whole = {path: flat.get(path, number.default) for path, number in NUMBERS.items()}
    ttl = whole["lease.execution_ttl"]
    ranges = (
        number.setting.least <= whole[path] <= number.setting.most
        for path, number in NUMBERS.items()
    )
    renewal, back_off = whole["lease.renew_every"], whole["lease.longest_back_off"]
    together = ttl + whole["lease.connectivity_grace"]
    related = (
        2 * renewal <= ttl,
        back_off <= ttl,
        whole["lease.session_silence"] <= together - whole["sweep.period"],
        whole["sweep.renewal_gap"] <= together - renewal - back_off,
    )
    return all(ranges) and all(related)


@given(DOCUMENTS)
@example({"lease.execution_ttl": 30_001})
@example({"lease.execution_ttl": 29_999})
@example({"sweep.renewal_gap": 90_001})
@example({"lease.session_silence": 900_000})
def test_a_document_is_accepted_exactly_when_its_numbers_are_allowed(flat: dict[str, int]) -> None:
    try:
        policy = read(nested(dict(flat)))
    except InvalidPolicy:
        assert not is_allowed(flat)
        return
    assert is_allowed(flat)
    stored = json.loads(policy.canonical())
    assert stored == written(policy)
    assert read(stored) == policy
    assert read(stored).digest() == policy.digest()
    assert all(_at(stored, path) == value for path, value in flat.items())


def _at(document: object, path: str) -> object:
    for name in path.split("."):
        assert isinstance(document, dict)
        document = document[name]
    return document


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["lease"]), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*NUMBERS, "lease", "batch", "x"]), JSON) | JSON)
def test_whatever_comes_is_read_or_refused(document: object) -> None:
    policy = SchedulingPolicy()
    with suppress(InvalidPolicy):  # and nothing else
        policy = read(document)
    assert read(written(policy)) == policy


@given(st.integers(0, 10**12))
def test_a_duration_is_printed_as_what_it_is(duration: int) -> None:
    assert parse_duration(duration_text(duration), field="it") == duration
