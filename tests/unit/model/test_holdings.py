"""What a runner has at hand is told in a summary that stays small and never misses a member."""

import hashlib
import json
from dataclasses import asdict

import pytest

from forgeyard.errors import Corrupt
from forgeyard.model.holdings import (
    MAX_BLOOM_BYTES,
    MAX_OBJECTS,
    NOTHING_HELD,
    Bloom,
    Holdings,
    bloom_of,
)
from forgeyard.store.codec import decode, encode


def digests(count: int, prefix: str = "in") -> list[str]:
    """Name as many archives as wanted."""
    return [f"sha256:{hashlib.sha256(f'{prefix}{n}'.encode()).hexdigest()}" for n in range(count)]


@pytest.mark.requirement("SCO-010")
@pytest.mark.parametrize("count", [1, 10, 1_000, 3_000])
def test_a_set_of_digests_misses_no_member_and_takes_few_strangers_for_one(count: int) -> None:
    members = digests(count)
    bloom = bloom_of(members)
    assert bloom is not None
    assert all(bloom.may_hold(member) for member in members)
    strangers = digests(2_000, "out")
    assert sum(map(bloom.may_hold, strangers)) < len(strangers) // 20


@pytest.mark.requirement("SCO-010")
def test_a_set_of_a_million_digests_is_as_small_as_any() -> None:
    bloom = bloom_of(digests(20_000))
    assert bloom is not None
    assert len(bloom.bits) <= 4 * -(-MAX_BLOOM_BYTES // 3)
    assert decode(Bloom, encode(bloom)) == bloom


def test_two_processes_put_the_same_digests_into_the_same_bits() -> None:
    bloom = bloom_of(digests(3))
    assert bloom is not None
    # Written down: an agent of today is read by a server of tomorrow.
    assert (bloom.bits, bloom.hashes) == ("2SlOpg==", 7)


def test_no_digest_makes_no_set_and_a_garbled_set_holds_nothing() -> None:
    assert bloom_of(()) is None
    for bits in ("", "not base64!", "====", "é"):
        assert not Bloom(bits=bits).may_hold("sha256:a")


@pytest.mark.requirement("SCO-009")
def test_what_is_held_is_known_exactly_for_the_last_used_and_roughly_for_the_rest() -> None:
    named, rest = digests(2), digests(5, "rest")
    held = Holdings(objects=dict.fromkeys(named, 10), others=bloom_of(rest))
    assert all(map(held.holds, named + rest))
    assert not held.holds("sha256:other")
    assert not NOTHING_HELD.holds(named[0])


@pytest.mark.requirement("SCO-010")
@pytest.mark.parametrize(
    "changed",
    [
        {"objects": dict.fromkeys(digests(MAX_OBJECTS + 1), 1)},
        {"objects": {"sha256:a": -1}},
        {"objects": {"x" * 129: 1}},
        {"closures": ["key"] * 65},
        {"others": {"bits": "A" * 6_000}},
        {"others": {"bits": "AAAA", "hashes": 1_000_000}},
    ],
    ids=["many", "negative", "long", "closures", "bits", "hashes"],
)
def test_a_summary_that_is_too_large_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        decode(Holdings, json.dumps({**asdict(NOTHING_HELD), **changed}))
