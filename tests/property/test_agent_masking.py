"""However a stream is cut, the same is shown, and never a secret."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from forgeyard.agent.masking import Masker

letters = st.text(alphabet="abc", min_size=4, max_size=7)


@given(
    secrets=st.lists(letters, min_size=1, max_size=3),
    text=st.text(alphabet="abcd", max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=12),
)
def test_masking_does_not_depend_on_how_the_stream_is_cut(
    secrets: list[str], text: str, cuts: list[int]
) -> None:
    whole, pieces = Masker(secrets), Masker(secrets)
    expected = whole.feed(text.encode()) + whole.flush()
    at = [0, *sorted(cuts), len(text)]
    shown = b"".join(pieces.feed(text[start:end].encode()) for start, end in itertools.pairwise(at))
    shown += pieces.flush()
    assert shown == expected
    assert not any(secret.encode() in shown for secret in secrets)
