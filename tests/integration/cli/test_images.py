"""Images and rollouts at the command line, against a real API."""

from pathlib import Path

import pytest

from tests.integration.cli.house import House, Said

pytestmark = pytest.mark.integration
WHY = ("--reason", "the weekly build")
OLD, NEW = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
MADE = ("--built-by", "ci", "--source", "3c9e01", "--sbom", "sha256:77", "--signature", "oci://s")
FLEET = """
name: builders
capacity: {resources: {cpu: 4, memory: 8Gi, slots: 4}, isolation: vm, image: stable}
images: attested
rollout: {canaries: 2, soak: 5m, max_surge: 2, max_unavailable: 0}
"""


def did(house: House, *arguments: str, code: int = 0) -> Said:
    said = house.run(*arguments)
    assert said.code == code, said.err + said.out
    return said


@pytest.mark.requirement("IMG-005", "IMG-015", "IMG-016", "IMG-018")
def test_an_image_is_registered_named_used_and_struck_out(house: House) -> None:
    did(house, "image", "add", OLD, "--ref", "aws/eu-1=ami-1", *MADE, *WHY)
    did(house, "image", "alias", "stable", OLD, *WHY)
    Path("fleet.yaml").write_text(FLEET)
    did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)
    fleet = did(house, "fleet", "status", "builders", "--json").json()["fleet"]
    assert fleet["spec"]["capacity"]["image"] == OLD
    shown = did(house, "image", "show", "stable").out
    assert f"{OLD}: trusted" in shown
    assert "aws/eu-1: ami-1" in shown
    said = did(house, "image", "compromise", "stable", "--since", "2d", *WHY).out
    assert "0 machines go" in said
    assert "compromised (critical)" in did(house, "image", "list").out
    did(house, "image", "trust", OLD, *WHY)
    did(house, "image", "retire", OLD, *WHY)
    assert did(house, "image", "show", OLD, "--json").json()["state"] == "retired"
    did(house, "image", "show", "edge", code=3)
    did(house, "image", "compromise", OLD, "--severity", "terrible", *WHY, code=2)


@pytest.mark.requirement("IMG-009", "IMG-017")
def test_a_rollout_is_started_watched_paused_and_taken_back(house: House) -> None:
    for digest in (OLD, NEW):
        did(house, "image", "add", digest, *MADE, *WHY)
    did(house, "image", "alias", "stable", OLD, *WHY)
    Path("fleet.yaml").write_text(FLEET)
    did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)
    did(house, "fleet", "rollout", "status", "builders", code=3)
    started = did(house, "fleet", "rollout", "start", "builders", "--image", NEW, *WHY).out
    assert "builders: canary" in started
    assert f"image: {NEW}" in started
    did(house, "fleet", "rollout", "start", "builders", "--image", NEW, *WHY, code=4)
    assert "paused: the weekly" in did(house, "fleet", "rollout", "pause", "builders", *WHY).out
    did(house, "fleet", "rollout", "resume", "builders", *WHY)
    did(house, "fleet", "rollout", "rollback", "builders", *WHY)
    assert "rolled back" in did(house, "fleet", "rollout", "status", "builders").out
