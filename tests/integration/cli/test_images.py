"""Images and rollouts at the command line, against a real API."""

import base64
from pathlib import Path

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ec

from forgeyard.machine_settings import FleetsConfig
from tests.integration.cli.house import House, Said, open_house
from tests.signing import public_file, sign

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


@pytest.mark.requirement("GAT-016", "IMG-005")
def test_an_image_is_signed_at_the_command_line_and_verified_by_the_api(
    sqlite_engine: sa.Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The signature as bytes and in base64, as tools write it."""
    key = ec.generate_private_key(ec.SECP256R1())
    fleets = FleetsConfig(
        image_keys={"release": public_file(tmp_path, "release", key)}, require_signature=True
    )
    monkeypatch.setenv("FORGEYARD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    told = ("--ref", "aws/eu-1=ami-1", "--built-by", "ci", "--source", "3c9e01", "--sbom", "s")
    with open_house(sqlite_engine, tmp_path / "data", capsys, fleets=fleets) as house:
        assert "signature is missing" in did(house, "image", "add", OLD, *told, *WHY, code=2).err
        for digest, is_base64 in ((OLD, True), (NEW, False)):
            statement = did(house, "image", "statement", digest, *told).out
            made = sign(key, statement.encode())
            text = f"{made[:60]}\n{made[60:]}\n".encode()
            Path(digest[-8:]).write_bytes(text if is_base64 else base64.b64decode(made))
            signed = ("--signature-file", digest[-8:])
            did(house, "image", "add", digest, *told, *signed, *WHY)
            assert "record signed by: release" in did(house, "image", "show", digest).out
        replayed = ("--signature-file", OLD[-8:])
        third = f"sha256:{'c' * 64}"
        said = did(house, "image", "add", third, *told, *replayed, *WHY, code=2).err
        assert "no key that is known here has signed this record" in said
        Path("empty").touch()
        did(house, "image", "add", third, *told, "--signature-file", "empty", *WHY, code=2)
        did(house, "image", "add", third, *told, "--signature-file", "missing", *WHY, code=3)
        did(house, "image", "alias", "stable", OLD, *WHY)
        Path("fleet.yaml").write_text(FLEET.replace("images: attested", "images: signed"))
        did(house, "fleet", "apply", "-f", "fleet.yaml", "--dry-run", *WHY)
        did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)


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
