"""Tokens, requests and identities: what is taken from outside, and what never is."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from forgeyard import clock
from forgeyard.errors import InvalidRequest, Unauthenticated
from forgeyard.trust import certificates, keys, requests, tokens
from forgeyard.trust.certificates import Signer
from forgeyard.trust.identity import identity_in
from tests.trusting import an_authority, der_of

KEY = b"k" * 32
ENROLMENT = "enr_01M8PK5WEHDKTHFVN846XKGAXH"


def test_a_token_is_the_same_each_time_it_is_derived() -> None:
    one, again = (tokens.derive(KEY, ENROLMENT, "host/a/1") for _ in range(2))
    assert one == again
    assert tokens.read(one.written()) == one
    assert one.written().startswith("fye_01M8PK5WEHDKTHFVN846XKGAXH_")


@pytest.mark.parametrize(
    "other",
    [
        (b"l" * 32, ENROLMENT, "host/a/1"),
        (KEY, "enr_01M8PK5WEHDKTHFVN846XKGAXJ", "host/a/1"),
        (KEY, ENROLMENT, "host/a/2"),
    ],
)
def test_no_two_enrolments_have_one_token(other: tuple[bytes, str, str]) -> None:
    assert tokens.derive(KEY, ENROLMENT, "host/a/1").secret != tokens.derive(*other).secret


def test_the_mark_of_a_token_does_not_hold_it() -> None:
    token = tokens.derive(KEY, ENROLMENT, "host/a/1")
    assert token.secret not in tokens.mark(KEY, token)
    assert token.secret not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "fye_", "fya_01M8PK5WEHDKTHFVN846XKGAXH_" + "a" * 43, "x" * 200, "fye_\x00"]
)
def test_what_is_no_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        tokens.read(text)
    assert refused.value.value is None


def test_a_request_gives_its_key_and_nothing_else() -> None:
    key = keys.new_key()
    assert keys.pin_of(requests.key_in(requests.write_request(key))) == keys.pin_of(
        key.public_key()
    )


def _request(key: object, *extensions: x509.ExtensionType) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    signed = builder.sign(key, digest)  # type: ignore[arg-type]
    return signed.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(public_exponent=65537, key_size=1024),
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=["rsa-1024", "rsa-2048", "p-384", "ed25519"],
)
def test_keys_of_other_kinds_are_refused(key: object) -> None:
    """S13."""
    with pytest.raises(InvalidRequest, match="key"):
        requests.key_in(_request(key))


def test_a_request_that_another_key_signed_is_refused() -> None:
    """S13: whoever sends a foreign key has to hold it."""
    text = requests.write_request(keys.new_key())
    lines = text.splitlines()
    middle = len(lines) - 3
    flipped = lines[middle][:-2] + ("A" if lines[middle][-2] != "A" else "B") + lines[middle][-1]
    with pytest.raises(InvalidRequest):
        requests.key_in("\n".join([*lines[:middle], flipped, *lines[middle + 1 :]]) + "\n")


@pytest.mark.parametrize("text", ["", "nothing", "-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        requests.key_in(text)


def test_a_request_of_a_hundred_kilobytes_is_refused() -> None:
    """S13."""
    with pytest.raises(InvalidRequest, match="too long"):
        requests.key_in("x" * 100_000)


def test_what_a_request_asks_for_beside_its_key_is_not_in_the_certificate() -> None:
    """S13: a foreign name, and to be an authority."""
    key = keys.new_key()
    asked = _request(
        key,
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://x/runner/other")]),
    )
    authority = an_authority()
    made = certificates.client(
        requests.key_in(asked),
        "spiffe://x/runner/rnr_1",
        by=authority,
        now=clock.now(),
        lasts=certificates.SKEW,
    )
    assert identity_in(der_of(made)).runner_id == "rnr_1"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert "admin" not in made.subject.rfc4514_string()


def _server_certificate(authority: Signer) -> x509.Certificate:
    key = keys.new_key().public_key()
    return certificates.server(
        key, ["a.example"], by=authority, now=clock.now(), lasts=certificates.SKEW
    )


def test_a_certificate_for_another_use_is_no_identity() -> None:
    """S12: wrong use."""
    with pytest.raises(Unauthenticated):
        identity_in(der_of(_server_certificate(an_authority())))


@pytest.mark.parametrize(
    "name",
    ["spiffe://x/user/rnr_1", "https://x/runner/rnr_1", "spiffe:///runner/a"],
)
def test_a_name_that_is_no_runner_is_no_identity(name: str) -> None:
    key = keys.new_key().public_key()
    made = certificates.client(
        key, name, by=an_authority(), now=clock.now(), lasts=certificates.SKEW
    )
    with pytest.raises(Unauthenticated):
        identity_in(der_of(made))


def test_what_is_no_certificate_is_no_identity() -> None:
    with pytest.raises(Unauthenticated):
        identity_in(b"nothing")
