"""Fleets that take only images whose record a known key has signed."""

from dataclasses import replace

import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from forgeyard.errors import Conflict, InvalidRequest
from forgeyard.model.fleet import FleetSpec
from forgeyard.model.image import ImageDemand, Provenance, RunnerImage
from forgeyard.store import codec, fleets, image_tables, images, rollouts
from forgeyard.store.engine import read
from forgeyard.trust.image_signatures import NO_KEYS, ImageKeys
from tests.builders import RNG, a_fleet_spec
from tests.integration.store.grounds import ANN, MADE, NEW, OLD, digest_of
from tests.leasing import Desk
from tests.signing import SigningKey, sign

pytestmark = [pytest.mark.integration, pytest.mark.requirement("GAT-016", "IMG-005", "IMG-006")]
IMAGES = image_tables.runner_images
BUILDER = ed25519.Ed25519PrivateKey.from_private_bytes(b"1" * 32)
RELEASE = ec.derive_private_key(7, ec.SECP256R1())
STRANGER = ed25519.Ed25519PrivateKey.from_private_bytes(b"2" * 32)
NAMED = {"builder": BUILDER.public_key(), "release": RELEASE.public_key()}
KEYS, DEMANDING = ImageKeys(NAMED), ImageKeys(NAMED, is_required=True)
TOLD = replace(MADE, signature="")
UNSIGNED = "no signature that can be verified"


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def record(digest: str = OLD, **changed: object) -> RunnerImage:
    usual = {"references": {"aws/eu-1": "ami-1"}, "provenance": TOLD}
    return RunnerImage(**{"digest": digest, **usual, **changed})


def add(
    desk: Desk,
    image: RunnerImage,
    key: SigningKey | None = BUILDER,
    *,
    over: RunnerImage | None = None,
    keys: ImageKeys = KEYS,
) -> RunnerImage:
    """Register an image, signed by a key over this record or another one."""
    made = "" if key is None else sign(key, (over or image).statement())
    return desk.change(images.add, image, ANN, signature=made, keys=keys).image


def signed_only(image: str = OLD, demand: ImageDemand = ImageDemand.SIGNED) -> FleetSpec:
    base = a_fleet_spec(images=demand)
    return replace(base, capacity=replace(base.capacity, image=image))


def apply(desk: Desk, spec: FleetSpec, keys: ImageKeys = KEYS) -> FleetSpec:
    return desk.change(fleets.apply, spec, ANN, expected_version=None, rng=RNG, keys=keys).spec


@pytest.mark.parametrize(("key", "name"), [(BUILDER, "builder"), (RELEASE, "release")])
def test_an_image_that_a_known_key_has_signed_is_taken(
    desk: Desk, key: SigningKey, name: str
) -> None:
    made = add(desk, record(), key)
    assert made.signature is not None
    assert made.signature.by == name
    assert apply(desk, signed_only()).capacity.image == OLD
    assert f"signed by {name}" in desk.audited("image.add")[0]["detail"]


def test_an_image_that_nobody_has_signed_is_not(desk: Desk) -> None:
    add(desk, record(provenance=MADE), None)
    assert apply(desk, signed_only(demand=ImageDemand.ATTESTED)).capacity.image == OLD
    with pytest.raises(Conflict, match=UNSIGNED):
        apply(desk, signed_only())
    with pytest.raises(Conflict, match="is not registered"):
        apply(desk, signed_only(NEW))


def test_a_signature_of_another_key_is_refused_and_nothing_is_registered(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="no key that is known here") as refused:
        add(desk, record(), STRANGER)
    assert "builder, release" in str(refused.value.allowed)
    with pytest.raises(InvalidRequest, match="no key that is known here"):
        add(desk, record(), BUILDER, keys=NO_KEYS)
    assert desk.rows(IMAGES) == []


OTHERS = {
    "another image": record(NEW),
    "another place": record(references={"aws/eu-1": "ami-2"}),
    "more places": record(references={"aws/eu-1": "ami-1", "aws/us-1": "ami-2"}),
    "another source": record(provenance=replace(TOLD, source="4d0f12")),
    "less": record(provenance=Provenance()),
}


@pytest.mark.parametrize("over", OTHERS.values(), ids=OTHERS)
def test_a_signature_over_another_record_is_refused(desk: Desk, over: RunnerImage) -> None:
    """Replayed for another image, or made before something was changed."""
    with pytest.raises(InvalidRequest, match="no key that is known here"):
        add(desk, record(), over=over)
    assert desk.rows(IMAGES) == []


def test_where_a_signed_image_is_found_changes_with_another_signature_only(desk: Desk) -> None:
    """What a provider calls it decides what boots: nobody adds a place to what others signed."""
    add(desk, record())
    more = record(references={"aws/us-1": "ami-2"})
    with pytest.raises(InvalidRequest, match="its signature is missing"):
        add(desk, more, None)
    both = record(references={"aws/eu-1": "ami-1", "aws/us-1": "ami-2"})
    made = add(desk, more, RELEASE, over=both)
    assert made.references == both.references
    assert made.signature is not None
    assert made.signature.by == "release"
    assert add(desk, record(), None) == made, "the same again is no change"


def test_a_record_that_was_changed_in_the_store_is_not_taken(desk: Desk) -> None:
    for digest, changed in (
        (OLD, {"references": {"aws/eu-1": "ami-9"}}),
        (NEW, {"digest": OLD}),
        (digest_of("third"), {"provenance": replace(TOLD, source="4d0f12")}),
    ):
        made = replace(add(desk, record(digest)), **changed)
        own = IMAGES.c.digest == digest
        desk.change(
            lambda connection, own=own, made=made: connection.execute(
                sa.update(IMAGES).where(own).values(image=codec.encode(made))
            )
        )
        with pytest.raises(Conflict, match=UNSIGNED):
            apply(desk, signed_only(digest))


def test_a_key_that_is_taken_away_vouches_for_nothing_new(desk: Desk) -> None:
    add(desk, record())
    less = ImageKeys({"release": RELEASE.public_key()})
    with pytest.raises(Conflict, match=UNSIGNED) as refused:
        apply(desk, signed_only(), less)
    assert refused.value.allowed == "one whose record is signed by one of release"


def test_who_signs_must_say_how_it_was_made(desk: Desk) -> None:
    add(desk, record(provenance=replace(TOLD, sbom="")))
    with pytest.raises(Conflict, match="no complete record"):
        apply(desk, signed_only())


def test_where_everything_has_to_be_signed_no_document_says_otherwise(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="its signature is missing"):
        add(desk, record(), None, keys=DEMANDING)
    add(desk, record(provenance=MADE), None)
    for demand in ImageDemand:
        with pytest.raises(Conflict, match="is not registered"):
            apply(desk, signed_only(NEW, demand), DEMANDING)
        with pytest.raises(Conflict, match=UNSIGNED):
            apply(desk, signed_only(OLD, demand), DEMANDING)
    add(desk, record(NEW), keys=DEMANDING)
    assert apply(desk, signed_only(NEW, ImageDemand.ANY), DEMANDING).capacity.image == NEW


def test_a_rollout_begins_and_goes_back_with_signed_images_only(desk: Desk) -> None:
    add(desk, record())
    add(desk, record(NEW, provenance=MADE), None)
    apply(desk, signed_only())
    with pytest.raises(Conflict, match=UNSIGNED):
        desk.change(rollouts.start, "builders", NEW, ANN, rng=RNG, keys=KEYS)
    third = digest_of("third")
    add(desk, record(third))
    desk.change(rollouts.start, "builders", third, ANN, rng=RNG, keys=KEYS)
    back = desk.change(rollouts.roll_back, "builders", ANN, rng=RNG)
    assert back.before == OLD, "one that is under way can always be taken back"


def test_a_document_that_begins_to_demand_it_is_held_against_the_image_that_it_has(
    desk: Desk,
) -> None:
    add(desk, record(provenance=MADE), None)
    apply(desk, signed_only(demand=ImageDemand.KNOWN))
    with pytest.raises(Conflict, match=UNSIGNED):
        apply(desk, signed_only())
    add(desk, record(provenance=MADE))
    apply(desk, signed_only())
    kept = replace(signed_only(), pool="")
    assert apply(desk, kept, NO_KEYS).images is ImageDemand.SIGNED, "no key is no reason to stop"


def test_what_is_signed_is_the_same_wherever_it_is_written(desk: Desk) -> None:
    assert record(digest=f"sha256:{'0' * 64}").statement() == (
        b'{"digest":"sha256:' + b"0" * 64 + b'",'
        b'"provenance":{"builder":"ci","sbom":"sha256:77","signature":"","source":"3c9e01"},'
        b'"record":"forgeyard/image-record/1","references":{"aws/eu-1":"ami-1"}}'
    )
    add(desk, record())
    with read(desk.engine) as connection:
        assert images.show(connection, OLD).image.statement() == record().statement()
