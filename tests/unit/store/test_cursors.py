"""A cursor is short enough for a URL and says exactly what was put in."""

import pytest

from forgeyard.errors import InvalidRequest
from forgeyard.store import cursors
from forgeyard.store.cursors import Seen


def test_a_cursor_over_a_thousand_attempts_fits_in_a_url() -> None:
    marks = {
        cursors.key(f"att_{n}"): Seen(sequence=n * 1_000, size=n * 20_000) for n in range(1000)
    }
    text = cursors.write(marks)
    assert cursors.read(text) == marks
    assert len(text) < 20_000


def test_a_reader_who_has_seen_nothing_has_an_empty_cursor() -> None:
    assert cursors.write({}) == ""
    assert cursors.read("") == cursors.read(None) == {}


def test_the_largest_numbers_fit() -> None:
    marks = {cursors.key("att"): Seen(sequence=2**62 - 1, size=2**62)}
    assert cursors.read(cursors.write(marks)) == marks


@pytest.mark.parametrize("text", ["!", "AAAA", "ä", "A" * 100_000, "_" * 40])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        cursors.read(text)
    assert caught.value.field == "after"
