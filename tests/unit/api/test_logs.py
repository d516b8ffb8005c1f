"""Characters that a chunk of log cuts in two."""

import pytest

from forgeyard.api.logs import unfinished


@pytest.mark.parametrize("text", ["a", "é", "€", "💥"])
def test_only_a_begun_character_is_unfinished(text: str) -> None:
    data = f"abc{text}".encode()
    assert unfinished(data) == 0
    for cut in range(1, len(text.encode())):
        assert unfinished(data[:-cut]) == len(text.encode()) - cut


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x80\x80\x80", b"abc\x80\x80", b"\n"])
def test_what_was_never_a_character_is_not_held_back(data: bytes) -> None:
    assert unfinished(data) == 0
