"""A policy as people write it: what is accepted, and what is said of the rest."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from forgeyard.errors import InvalidPolicy
from forgeyard.model.job import Priority
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.policy_document import numbers, read, written
from forgeyard.model.units import Millis
from forgeyard.scheduler.order import BASE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "policy.md"


@pytest.mark.requirement("MOD-005")
def test_what_a_document_does_not_say_has_its_default() -> None:
    assert read({}) == SchedulingPolicy()
    partial = read({"batch": 7, "lease": {"offer_ttl": 5_000}})
    expected = SchedulingPolicy(batch=7, lease=LeasePolicy(offer_ttl=Millis(5_000)))
    assert partial == expected


def test_durations_are_text_with_a_unit_or_milliseconds() -> None:
    for given in ("1m30s", "90s", 90_000, "1.5m", "90000ms"):
        assert read({"lease": {"offer_ttl": given}}).lease.offer_ttl == 90_000


REFUSED = [
    ([], None, "a mapping"),
    ("batch: 1", None, "a mapping"),
    ({"bath": 1}, "bath", "batch, candidates"),
    ({"version": 1}, "version", "batch, candidates"),
    ({"lease": {"ttl": 1}}, "lease.ttl", "offer_ttl, execution_ttl"),
    ({"lease": None}, "lease", "a mapping"),
    ({"lease": [1]}, "lease", "a mapping"),
    ({"batch": 0}, "batch", "from 1 to 1000"),
    ({"batch": 1_001}, "batch", "from 1 to 1000"),
    ({"batch": 10**600}, "batch", "from 1 to 1000"),
    ({"batch": "5"}, "batch", "a whole number"),
    ({"batch": 5.0}, "batch", "a whole number"),
    ({"batch": True}, "batch", "a whole number"),
    ({"batch": None}, "batch", "a whole number"),
    ({"batch": {"a": 1}}, "batch", "a whole number"),
    ({"candidates": 21}, "candidates", "from 0 to 20"),
    ({"aging_limit": 400}, "aging_limit", "from 0 to 399"),
    ({"aging_step": 0}, "aging_step", "from 1s to 1d"),
    ({"lease": {"offer_ttl": "30"}}, "lease.offer_ttl", "from 1s to 1h"),
    ({"lease": {"offer_ttl": "999ms"}}, "lease.offer_ttl", "from 1s to 1h"),
    ({"lease": {"offer_ttl": "soons"}}, "lease.offer_ttl", "from 1s to 1h"),
    ({"lease": {"offer_ttl": "9" * 5_000 + "s"}}, "lease.offer_ttl", "from 1s to 1h"),
    ({"lease": {"offer_ttl": -1}}, "lease.offer_ttl", "from 1s to 1h"),
    ({"lease": {"execution_ttl": "20s"}}, "lease.renew_every", "at most 10s"),
    ({"lease": {"renew_every": "31s"}}, "lease.renew_every", "at most 30s"),
    ({"lease": {"longest_back_off": "61s"}}, "lease.longest_back_off", "at most 1m"),
    ({"lease": {"session_silence": "1m59s"}}, "lease.session_silence", "at most 118s"),
    ({"lease": {"connectivity_grace": 0}}, "lease.session_silence", "at most 58s"),
    ({"sweep": {"renewal_gap": "5s"}}, "sweep.renewal_gap", "from 10s"),
]


@pytest.mark.requirement("EOS-059")
@pytest.mark.parametrize(("document", "field", "allowed"), REFUSED)
def test_what_is_not_allowed_is_named_with_what_is(
    document: object, field: str | None, allowed: str
) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        read(document)
    assert caught.value.field == field
    assert caught.value.allowed is not None
    assert allowed in caught.value.allowed
    assert len(caught.value.message) < 200


def test_the_shipped_policy_keeps_its_own_ranges() -> None:
    assert read(written(SchedulingPolicy())) == SchedulingPolicy()
    for number in numbers():
        assert number.setting.least <= number.default <= number.setting.most, number.path


@pytest.mark.requirement("MOD-004")
def test_every_number_of_the_policy_has_a_range_and_a_meaning() -> None:
    listed = {number.path for number in numbers()}
    words = {"nameable_pools", "rules"}
    groups = {n: value for n, value in asdict(SchedulingPolicy()).items() if n not in words}
    expected = {
        path
        for name, value in groups.items()
        for path in ([f"{name}.{inner}" for inner in value] if isinstance(value, dict) else [name])
    }
    assert listed == expected
    assert all(number.setting.says for number in numbers())


def test_waiting_never_lifts_a_job_to_an_emergency() -> None:
    (limit,) = (number for number in numbers() if number.path == "aging_limit")
    assert limit.setting.most == BASE[Priority.EMERGENCY] - 1


def test_the_digest_is_of_the_content_and_of_nothing_else() -> None:
    one, same = read({"batch": 9}), read({"batch": 9, "lease": {"offer_ttl": "30s"}})
    assert one.digest() == same.digest()
    assert one.digest() != replace(one, batch=8).digest()


def test_the_page_lists_every_number_with_its_default_and_its_range() -> None:
    expected = [
        f"| `{number.path}` | {number.setting.says} | {number.text(number.default)} |"
        f" {number.text(number.setting.least)} to {number.text(number.setting.most)} |"
        for number in numbers()
    ]
    listed = re.findall(r"^\| `.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert listed == expected, "\n".join(["docs/policy.md must say:", *expected])
