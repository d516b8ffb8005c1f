"""`forgeyard policy …` against a real API."""

from pathlib import Path

import pytest

from forgeyard.model.policy import SchedulingPolicy
from tests.integration.cli.house import House

pytestmark = pytest.mark.integration


def write(text: str, name: str = "policy.yaml") -> str:
    Path(name).write_text(text)
    return name


def test_what_is_shown_can_be_edited_and_set(house: House) -> None:
    shown = house.run("policy", "show")
    assert shown.code == 0, shown.err
    assert shown.out.startswith("# the built-in policy, version 0, sha256:")
    assert "offer_ttl: 30s" in shown.out
    assert "how long a runner may take to accept an offer (1s to 1h)" in shown.out
    same = house.run("policy", "set", write(shown.out), "--reason", "none")
    assert "nothing to do" in same.out, same.err
    file = write(shown.out.replace("offer_ttl: 30s", "offer_ttl: 45s"))
    said = house.run("policy", "set", file, "--reason", "slow runners")
    assert said.code == 0, said.err
    assert "version 1 is in force" in said.out
    again = house.run("policy", "show")
    assert again.out.startswith("# version 1, sha256:")
    assert "offer_ttl: 45s" in again.out
    listed = house.run("policy", "history").out
    assert "slow runners" in listed
    assert house.run("policy", "history", "--json").json()[0]["version"] == 1


def test_programs_read_the_policy_as_json(house: House) -> None:
    found = house.run("policy", "show", "--json").json()
    assert (found["version"], found["digest"]) == (0, SchedulingPolicy().digest())
    assert found["document"]["lease"]["offer_ttl"] == 30_000
    said = house.run("policy", "set", write("batch: 9"), "--reason", "x", "--json")
    assert said.json()["version"] == 1
    assert "nobody has set" not in house.run("policy", "history").err


def test_a_policy_that_was_changed_meanwhile_is_not_overwritten(house: House) -> None:
    house.run("policy", "set", write("batch: 9"), "--reason", "first")
    said = house.run("policy", "set", write("batch: 8"), "--reason", "second", "--expect", "0")
    assert said.code == 4
    assert "version 1 is in force" in said.err
    said = house.run("policy", "set", write("{}"), "--reason", "third", "--expect", "1")
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("batch: 200\nlease:\n  offer_ttl: 30\n", "policy.yaml:3:3", "from 1s to 1h"),
        ("batch: 200\nbath: 3\n", "policy.yaml:2:1", "batch, candidates"),
        ("lease: {execution_ttl: 20s}\n", "policy.yaml:1:1", "at most 10s"),
        ("batch: [1\n", "policy.yaml:", "error"),
        ("", "policy.yaml", "{} for all defaults"),
    ],
)
def test_a_file_is_checked_without_a_server_and_faults_have_their_place(
    house: House, text: str, place: str, said: str
) -> None:
    answer = house.run("policy", "check", write(text), "--url", "http://127.0.0.1:1")
    assert answer.code == 2
    assert place in answer.err
    assert said in answer.err
    problem = house.run("policy", "check", write(text), "--json").problem()
    assert problem["code"] == "policy.invalid"


def test_a_good_file_is_said_to_be_fine_here_and_there(house: House) -> None:
    said = house.run("policy", "check", write("batch: 9"), "--server")
    assert said.code == 0, said.err
    assert "policy.yaml is fine: sha256:" in said.out
    found = house.run("policy", "check", write("batch: 9"), "--json").json()
    assert found["document"]["batch"] == 9
    assert house.run("policy", "check", "absent.yaml").code == 3
