"""Whatever stands in a row, reading it gives what was meant or says `Corrupt`, and nothing else.

A control loop parks what is corrupt; anything else would end its cycle, again and again (S9).
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Hashable
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.errors import Corrupt
from forgeyard.model.capability import Capabilities
from forgeyard.model.holdings import Holdings
from forgeyard.model.job import JobSpec, Timeouts
from forgeyard.model.protocol import StepResult
from forgeyard.model.protocol import TestCounts as Counts
from forgeyard.model.run import GitSource
from forgeyard.store import codec
from tests.builders import a_job_spec, some_capabilities

WHOLE: tuple[tuple[Hashable, object], ...] = (
    (JobSpec, a_job_spec(env={"A": "b"}, needs=("first",), outputs=())),
    (Capabilities, some_capabilities(labels={"zone": "a"})),
    (tuple[StepResult, ...], (StepResult(name="test", exit_code=1),)),
    (Counts, Counts(tests=3)),
    (Holdings, Holdings()),
)
OTHERS: tuple[Hashable, ...] = (GitSource, Timeouts)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([10**400, -(2**63), 2**63, "\x00", "9" * 5_000, [], {}, "NaN"])
)
NAMES = st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def changed(value: object, draw: Callable[[st.SearchStrategy[object]], object]) -> object:
    """Put something else in one place of a JSON value, or take the place away."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(value)))
        rest = {key: inner for key, inner in value.items() if key != name}
        if draw(st.integers(0, 4)) == 0:
            return rest
        return {**rest, name: changed(value[name], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        return [changed(value[0], draw), *value[1:]]
    return draw(VALUES)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Hashable, str]:
    """Draw a kind of row, and text that was one once."""
    kind, value = draw(st.sampled_from(WHOLE))
    text = codec.encode(value, kind)
    way = draw(st.sampled_from(["value", "cut", "letter", "other", "deep"]))
    if way == "value":
        return kind, json.dumps(changed(json.loads(text), draw))
    place = draw(st.integers(0, len(text)))
    if way == "cut":
        return kind, text[:place]
    if way == "letter":
        return kind, text[:place] + draw(st.characters(codec="utf-8")) + text[place + 1 :]
    if way == "deep":
        return kind, text[:place] + '{"a":' * draw(st.sampled_from([300, 100_000]))
    return draw(st.sampled_from(OTHERS)), text


def test_a_damaged_row_is_read_or_is_corrupt() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(damaged())
    def reads(row: tuple[Hashable, str]) -> None:
        kind, text = row
        try:
            codec.decode(cast("type[object]", kind), text)
            seen["read"] += 1
        except Corrupt:
            seen["corrupt"] += 1

    reads()
    assert seen["corrupt"] > 100, seen
    assert seen["read"] > 20, seen


def test_a_damaged_part_is_read_or_is_corrupt() -> None:
    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(damaged())
    def reads(row: tuple[Hashable, str]) -> None:
        with contextlib.suppress(Corrupt):
            codec.decode_part(Timeouts, row[1], "timeouts")

    reads()
