"""Secrets never show in a log, however it is cut into pieces."""

import base64
import itertools

import pytest

from forgeyard.agent.masking import MASK, Masker


def masked(secrets: list[str], *pieces: bytes) -> bytes:
    """Mask a stream given in pieces."""
    masker = Masker(secrets)
    return b"".join(masker.feed(piece) for piece in pieces) + masker.flush()


def test_a_secret_is_hidden_and_the_rest_is_not() -> None:
    assert masked(["hunter22"], b"pass hunter22 word\n") == b"pass *** word\n"


def test_a_secret_cut_at_any_place_is_hidden() -> None:
    text = b"a hunter22 b"
    for cut in range(len(text) + 1):
        assert masked(["hunter22"], text[:cut], text[cut:]) == b"a *** b"


def test_a_secret_that_comes_byte_by_byte_is_hidden() -> None:
    text = b"hunter22hunter2 hunter22"
    assert masked(["hunter22"], *(bytes([byte]) for byte in text)) == b"***hunter2 ***"


def test_only_what_may_become_a_secret_is_held_back() -> None:
    masker = Masker(["hunter22"])
    assert masker.feed(b"progress: 10%") == b"progress: 10%"
    assert masker.feed(b" hunt") == b" "
    assert masker.feed(b"ing") == b"hunting"


def test_the_longer_of_two_secrets_with_one_beginning_is_hidden_whole() -> None:
    for cut in range(1, 12):
        text = b"passpassword"
        assert b"word" not in masked(["pass", "password"], text[:cut], text[cut:])


def test_overlapping_secrets_leave_no_remainder() -> None:
    assert masked(["abcdef", "defghi"], b"xabcdefghiy") == b"x***y"
    assert masked(["abcdef", "defghi"], b"xabcd", b"efg", b"hiy") == b"x***y"


def test_a_stream_of_nothing_but_a_repeating_secret_is_not_kept_in_memory() -> None:
    masker = Masker(["aaaaaaaa"])
    shown = b"".join(masker.feed(b"a" * 1000) for _ in range(100))
    assert set(shown) <= set(MASK)
    assert masker.flush() in (b"", b"*" * 3)


@pytest.mark.parametrize(
    "form",
    [
        b"k3y/with+odd=chars",
        base64.b64encode(b"k3y/with+odd=chars"),
        base64.urlsafe_b64encode(b"k3y/with+odd=chars"),
        b"k3y%2Fwith%2Bodd%3Dchars",
    ],
)
def test_the_forms_that_tools_print_are_hidden(form: bytes) -> None:
    shown = masked(["k3y/with+odd=chars"], b"<" + form + b">")
    assert shown.startswith(b"<***")
    assert form[:8] not in shown


def test_a_quote_in_a_secret_is_hidden_in_json_too() -> None:
    assert masked(['say "yes" now'], b'{"x": "say \\"yes\\" now"}') == b'{"x": "***"}'


def test_a_message_is_masked_like_the_log() -> None:
    masker = Masker(["hunter22"])
    masker.feed(b"hunt")
    assert masker.text("step 'hunter22' failed") == "step '***' failed"
    assert masker.flush() == b"hunt"


def test_without_secrets_nothing_is_held_back() -> None:
    pieces = [bytes([byte]) for byte in range(256)]
    masker = Masker([])
    assert list(itertools.chain(map(masker.feed, pieces))) == pieces
