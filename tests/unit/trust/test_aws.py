"""Documents that AWS signed are believed, whatever else is not; two of them are AWS's own."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.errors import InvalidRequest
from forgeyard.trust import aws, signed_message
from forgeyard.trust.aws import AwsVerifier
from forgeyard.trust.evidence import Doubt, Facts, Unproved
from forgeyard.trust.signed_message import UnreadableMessage
from tests.aws import (
    ACCOUNT,
    INSTANCE,
    RECORDED,
    REGION,
    a_document,
    a_key,
    certificate_file,
    signed,
)

REGIONS = ("us-west-1", "us-west-2")
fuzzed = settings(max_examples=200, deadline=None, derandomize=True, database=None)
RECORDED_FACTS = {
    "us-west-2": Facts(
        account="278576220453",
        region="us-west-2",
        instance="i-078517ca8a70a1dde",
        launched_at=1_630_704_344_000,
    ),
    "us-west-1": Facts(
        account="883474662888",
        region="us-west-1",
        instance="i-01b940c45fd11fe74",
        launched_at=1_631_319_258_000,
    ),
}
AMAZON = aws.load({region: str(RECORDED / f"{region}.pem") for region in REGIONS})
OURS = AwsVerifier({REGION: (a_key().public_key(),)})


def recorded(region: str) -> str:
    return (RECORDED / f"{region}.rsa2048").read_text()


def doubt_of(found: object) -> Doubt:
    assert isinstance(found, Unproved), found
    return found.doubt


@pytest.mark.parametrize("region", REGIONS)
def test_what_aws_really_signed_is_believed(region: str) -> None:
    assert AMAZON.verify(recorded(region)) == RECORDED_FACTS[region]


def test_the_certificate_of_another_region_does_not_do() -> None:
    swapped = aws.load({"us-west-1": str(RECORDED / "us-west-2.pem")})
    assert doubt_of(swapped.verify(recorded("us-west-1"))) is Doubt.FORGED


def test_a_region_without_a_certificate_is_not_believed() -> None:
    alone = aws.load({"us-west-1": str(RECORDED / "us-west-1.pem")})
    assert doubt_of(alone.verify(recorded("us-west-2"))) is Doubt.UNKNOWN_REGION


def test_no_byte_of_what_aws_signed_can_be_changed_to_another_fact() -> None:
    """What is not signed, such as the name of the signer, may read as anything."""
    message, facts = base64.b64decode(recorded("us-west-2")), RECORDED_FACTS["us-west-2"]
    signed_parts = signed_message.read(message)
    fixed = [
        range(at, at + len(part))
        for part in (signed_parts.content, signed_parts.signature, signed_parts.attributes[1:])
        for at in (message.index(part),)
    ]
    refused = 0
    for at in range(len(message)):
        changed = message[:at] + bytes((message[at] ^ 1,)) + message[at + 1 :]
        found = AMAZON.verify(base64.b64encode(changed).decode())
        if any(at in part for part in fixed):
            assert isinstance(found, Unproved), at
            refused += 1
        assert isinstance(found, Unproved) or found == facts
    assert refused > 800


def test_a_document_of_ours_is_believed_by_our_key_alone() -> None:
    found = OURS.verify(signed(a_document()))
    assert isinstance(found, Facts)
    assert (found.account, found.region, found.instance) == (ACCOUNT, REGION, INSTANCE)
    assert doubt_of(OURS.verify(signed(a_document(), a_key(1)))) is Doubt.FORGED


def test_a_region_may_have_several_certificates() -> None:
    both = AwsVerifier({REGION: (a_key(1).public_key(), a_key().public_key())})
    assert isinstance(both.verify(signed(a_document())), Facts)


def test_another_content_under_a_true_signature_is_forged() -> None:
    true, false = a_document(), a_document(instanceId="i-fffffffffffffffff")
    assert len(true) + 2 == len(false) + 2
    message = base64.b64decode(signed(true)).replace(true, false)
    assert doubt_of(OURS.verify(base64.b64encode(message).decode())) is Doubt.FORGED


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"[" * 5_000,
        b"1" * 5_000,
        b"\xff\xfe",
        a_document(accountId=7),
        a_document(region=""),
        a_document(instanceId="i" * 65),
        a_document(instanceId="í-1"),
        a_document(pendingTime=None),
        a_document(pendingTime="yesterday"),
        a_document(pendingTime="2021-09-03T21:25:44"),
    ],
)
def test_a_signed_document_that_says_something_else_is_refused(document: bytes) -> None:
    found = OURS.verify(signed(document))
    assert doubt_of(found) in (Doubt.UNREADABLE, Doubt.UNKNOWN_REGION)


def test_a_launch_before_all_time_is_a_fact_like_any_other() -> None:
    """What is too old is for the rule to say."""
    found = OURS.verify(signed(a_document(pendingTime="0001-01-01T00:00:00+23:59")))
    assert isinstance(found, Facts)
    assert found.launched_at < 0


def test_nothing_is_missing_and_too_much_is_unreadable() -> None:
    assert doubt_of(OURS.verify("")) is Doubt.MISSING
    assert doubt_of(OURS.verify("A" * 8_193)) is Doubt.UNREADABLE
    with pytest.raises(UnreadableMessage, match="too long"):
        signed_message.read(b"\x30" * 8_193)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x30",
        b"\x30\x80" * 4_000,
        b"\x30\x82\xff\xff",
        b"\x30\x84\x7f\xff\xff\xff",
        b"\x04\x80\x00\x00",
        b"\x1f\x81\x01\x00",
        b"\x30\x00\x00",
    ],
)
def test_what_is_no_signed_message_is_refused(message: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        signed_message.read(message)


@fuzzed
@given(st.text(max_size=600))
def test_no_text_makes_the_verifier_fail(text: str) -> None:
    assert isinstance(AMAZON.verify(text), Unproved)


@fuzzed
@given(st.binary(max_size=600))
def test_no_bytes_make_the_verifier_fail(message: bytes) -> None:
    assert isinstance(AMAZON.verify(base64.b64encode(message).decode()), Unproved)


@fuzzed
@given(st.data())
def test_no_damage_to_a_true_message_makes_the_verifier_fail(data: st.DataObject) -> None:
    """Cut, doubled, or written over: it says what AWS signed, or nothing."""
    region = data.draw(st.sampled_from(REGIONS))
    message = base64.b64decode(recorded(region))
    at, to = sorted(data.draw(st.tuples(*[st.integers(0, len(message))] * 2)))
    put = data.draw(st.sampled_from([b"", message[at:to] * 2]) | st.binary(max_size=40))
    found = AMAZON.verify(base64.b64encode(message[:at] + put + message[to:]).decode())
    assert isinstance(found, Unproved) or found == RECORDED_FACTS[region]


@fuzzed
@given(
    st.dictionaries(
        st.sampled_from(["accountId", "region", "instanceId", "pendingTime", "x"]),
        st.none() | st.integers() | st.text(max_size=80) | st.just(REGION) | st.dates().map(str),
        max_size=5,
    )
)
def test_no_signed_document_makes_the_verifier_fail(said: dict[str, object]) -> None:
    assert OURS.verify(signed(json.dumps(said).encode())) is not None


def test_which_regions_are_known_can_be_asked() -> None:
    assert OURS.knows(REGION)
    assert OURS.knows("")
    assert not OURS.knows("mars-1")
    assert not AwsVerifier({}).knows("")


def written(folder: Path, kind: str) -> str:
    file = folder / "aws.pem"
    if kind == "none":
        return str(file)
    if kind == "another kind":
        key = ec.generate_private_key(ec.SECP256R1())
        file.write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
    if kind == "empty":
        file.write_bytes(b"")
    if kind == "weak":
        return certificate_file(folder, a_key(bits=1024))
    return str(file)


@pytest.mark.parametrize("kind", ["none", "another kind", "empty", "weak"])
def test_a_file_without_rsa_2048_certificates_is_refused_at_the_start(
    tmp_path: Path, kind: str
) -> None:
    with pytest.raises(InvalidRequest, match="certificates of us-west-1") as refused:
        aws.load({"us-west-1": written(tmp_path, kind)})
    assert refused.value.field == "api.aws_certificates"
