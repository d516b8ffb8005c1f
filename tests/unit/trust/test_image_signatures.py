"""Only a key that an operator gave signs records of images, and only these very bytes."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from forgeyard.errors import InvalidRequest
from forgeyard.trust.image_signatures import NO_KEYS, ImageKeys, load
from tests.signing import SigningKey, public_file, sign

RECORD = b'{"digest":"sha256:1","record":"forgeyard/image-record/1"}'
EDWARDS = ed25519.Ed25519PrivateKey.from_private_bytes(b"1" * 32)
CURVE = ec.derive_private_key(7, ec.SECP256R1())
BOTH = pytest.mark.parametrize("key", [EDWARDS, CURVE], ids=["ed25519", "p256"])


@pytest.fixture
def keys(tmp_path: Path) -> ImageKeys:
    files = {"one": public_file(tmp_path, "one", EDWARDS), "two": public_file(tmp_path, "2", CURVE)}
    return load(files, is_required=False)


def test_a_signature_names_the_key_that_made_it(keys: ImageKeys) -> None:
    assert keys.signer_of(RECORD, sign(EDWARDS, RECORD)) == "one"
    assert keys.signer_of(RECORD, sign(CURVE, RECORD)) == "two"
    assert NO_KEYS.signer_of(RECORD, sign(CURVE, RECORD)) is None


@pytest.mark.requirement("GAT-016")
@pytest.mark.parametrize(
    "stranger", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())]
)
def test_a_key_that_nobody_configured_signs_nothing(keys: ImageKeys, stranger: SigningKey) -> None:
    assert keys.signer_of(RECORD, sign(stranger, RECORD)) is None


@BOTH
def test_no_byte_of_record_or_signature_may_change(keys: ImageKeys, key: SigningKey) -> None:
    made = base64.b64decode(sign(key, RECORD))
    for place in range(len(RECORD)):
        changed = RECORD[:place] + bytes([RECORD[place] ^ 1]) + RECORD[place + 1 :]
        assert keys.signer_of(changed, base64.b64encode(made).decode()) is None
    for place in range(len(made)):
        changed = made[:place] + bytes([made[place] ^ 1]) + made[place + 1 :]
        assert keys.signer_of(RECORD, base64.b64encode(changed).decode()) is None


@pytest.mark.parametrize("text", ["", "=", "AA", "*", "ä", "A" * 1_000, sign(EDWARDS, RECORD)[:-4]])
def test_what_is_no_signature_is_nobody_s(keys: ImageKeys, text: str) -> None:
    assert keys.signer_of(RECORD, text) is None


def test_another_kind_of_key_is_refused_when_it_is_read(tmp_path: Path) -> None:
    large = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = large.public_key().public_bytes(serialization.Encoding.PEM, spki)
    private = EDWARDS.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "rsa.pem").write_bytes(pem)
    (tmp_path / "private.pem").write_bytes(private)
    (tmp_path / "nothing.pem").write_text("nothing")
    wide = public_file(tmp_path, "p384", ec.generate_private_key(ec.SECP384R1()))
    names = ("rsa.pem", "private.pem", "nothing.pem", "missing.pem")
    for file in (wide, *(str(tmp_path / name) for name in names)):
        with pytest.raises(InvalidRequest) as refused:
            load({"ci": file}, is_required=True)
        assert refused.value.field == "fleets.image_keys"
