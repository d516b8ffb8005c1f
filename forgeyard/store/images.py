"""Images of machines: registered once, named by people, and struck out when they turn out bad.

What is compromised is booted by nothing from then on; the machines that have it are found by the
steps that they take anyway, and go or are kept for a look (IMG-018 to IMG-020).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.fleet.view import COMING
from forgeyard.model.capability import RESTRICTED_TRUST
from forgeyard.model.fleet import FleetSpec
from forgeyard.model.image import (
    DIGEST,
    ImageDemand,
    ImageSeverity,
    ImageSignature,
    ImageState,
    RunnerImage,
)
from forgeyard.store import changes, codec, distrust, enrolments, fleet_tables, image_tables, tables
from forgeyard.store.changes import IMAGE, Row
from forgeyard.store.engine import database_now
from forgeyard.store.machines import binding_of
from forgeyard.store.shares import Intent
from forgeyard.trust.image_signatures import NO_KEYS, ImageKeys

MOST_SHOWN: Final = 1_000
_images, _aliases = image_tables.runner_images, image_tables.image_aliases
_instances, _fleets = fleet_tables.capacity_instances, fleet_tables.fleets
_COMING: Final = tuple(state.value for state in COMING)
_DIGEST: Final = re.compile(DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """An image as people see it; instants are epoch milliseconds."""

    image: RunnerImage
    state: ImageState
    state_reason: str
    severity: ImageSeverity | None
    aliases: tuple[str, ...]
    machines: int
    """How many that may exist boot it."""
    created_at: int
    changed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What was found of a compromised image."""

    machines: int
    """That may exist; they go, or are kept for a look."""
    tokens: int
    """Of machines that were to come up, withdrawn."""
    runners: int
    """Whose caches and outputs are distrusted now."""


def add(
    connection: sa.Connection,
    image: RunnerImage,
    intent: Intent,
    *,
    signature: str = "",
    keys: ImageKeys = NO_KEYS,
) -> ImageRecord:
    """Register an image; the same again is no change, and of a known one only places are added.

    A signature is over the record as it then stands, in base64.

    Raises:
        InvalidRequest: it has no digest, or is not signed as it should be.
        Conflict: it is known, and was made otherwise or is called otherwise.
    """
    _demand_digest(image.digest)
    now = database_now(connection)
    row: Row = {
        "digest": image.digest,
        "state": ImageState.TRUSTED.value,
        "version": 0,  # told apart by this from one that was there
        "image": codec.encode(image),
        "created_at": now,
        "changed_at": now,
    }
    changes.upsert(connection, _images, row, changes={})
    found = changes.find(connection, IMAGE, image.digest, lock=True)
    if found["version"] == 0:
        made = _signed(image, signature, keys) if signature else image
        _demand_signed(made, keys)
        own = _images.c.digest == image.digest
        written = {"version": 1, "image": codec.encode(made)}
        connection.execute(sa.update(_images).where(own).values(written))
        _tell(connection, "image.add", image.digest, intent, _by(made), now=now)
        return show(connection, image.digest)
    known = codec.decode(RunnerImage, found["image"])
    _demand_same(known, image)
    together = replace(known, references={**known.references, **image.references})
    if signature:
        together = _signed(together, signature, keys)
    if together != known:
        _demand_signed(together, keys)
        own = _images.c.digest == image.digest
        values = {"image": codec.encode(together), "changed_at": now}
        connection.execute(sa.update(_images).where(own).values(values))
        said = ", ".join(part for part in ("more on record", _by(together)) if part)
        _tell(connection, "image.add", image.digest, intent, said, now=now)
    return show(connection, image.digest)


def _signed(image: RunnerImage, signature: str, keys: ImageKeys) -> RunnerImage:
    """Put a signature on record, by whoever's it is."""
    signer = keys.signer_of(image.statement(), signature)
    if signer is None:
        raise InvalidRequest(
            "no key that is known here has signed this record",
            field="signature",
            value=image.digest,
            allowed=f"a signature over what `forgeyard image statement` writes, by {_known(keys)}",
        )
    return replace(image, signature=ImageSignature(by=signer, value=signature))


def _known(keys: ImageKeys) -> str:
    return f"one of {', '.join(keys.names)}" if keys.names else "a key in fleets.image_keys"


def _demand_signed(image: RunnerImage, keys: ImageKeys) -> None:
    """Insist that a record which is signed stays so, and is where everything has to be."""
    if (keys.is_required or image.signature is not None) and not _is_signed(image, keys):
        raise InvalidRequest(
            "its signature is missing, or is not over the record as it would be",
            field="signature",
            value=image.digest,
            allowed=f"one over all that is to be on record, by {_known(keys)}",
        )


def _is_signed(image: RunnerImage, keys: ImageKeys) -> bool:
    made = image.signature
    return made is not None and keys.signer_of(image.statement(), made.value) is not None


def _by(image: RunnerImage) -> str:
    return "" if image.signature is None else f"signed by {image.signature.by}"


def _demand_digest(digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(
            "an image is named by its digest",
            field="digest",
            value=digest,
            allowed="sha256: and 64 hexadecimal digits",
        )


def _demand_same(known: RunnerImage, image: RunnerImage) -> None:
    if image.provenance.is_told and image.provenance != known.provenance:
        raise Conflict(
            "this image is on record as made otherwise",
            field="provenance",
            value=image.digest,
            allowed="the record that it has; an image never changes",
        )
    for place, reference in image.references.items():
        if known.references.get(place, reference) != reference:
            raise Conflict(
                f"at {place} this image is called {known.references[place]}",
                field="references",
                value=reference,
                allowed=known.references[place],
            )


def trust(connection: sa.Connection, name: str, intent: Intent) -> ImageRecord:
    """Let machines boot an image again; what was distrusted of its runners stays so.

    Raises:
        NotFound: there is no such image.
    """
    return _move(connection, name, ImageState.TRUSTED, intent)


def retire(connection: sa.Connection, name: str, intent: Intent) -> ImageRecord:
    """Let no fleet begin to use an image; those that do go on.

    Raises:
        NotFound: there is no such image.
    """
    return _move(connection, name, ImageState.RETIRED, intent)


def compromise(
    connection: sa.Connection,
    name: str,
    severity: ImageSeverity,
    intent: Intent,
    *,
    since: int = 0,
) -> Struck:
    """Strike an image out: nothing boots it, what did goes, what that has left is distrusted.

    Said again it may say worse; `since` is from when on its runners are distrusted.

    Raises:
        NotFound: there is no such image.
    """
    digest = digest_of(connection, name)
    row, now = changes.find(connection, IMAGE, digest, lock=True), database_now(connection)
    worse = max(severity, ImageSeverity(row["severity"] or severity), key=_SEVERITIES.index)
    if row["state"] == ImageState.COMPROMISED.value:
        own = _images.c.digest == digest
        connection.execute(sa.update(_images).where(own).values(severity=worse.value))
    else:
        _change(connection, row, ImageState.COMPROMISED, intent, severity=worse.value, now=now)
    struck = _strike(connection, digest, intent, since=since)
    said = f"{worse}, {struck.machines} machines, {struck.tokens} tokens, {struck.runners} runners"
    _tell(connection, "image.compromise", digest, intent, said, now=now)
    return struck


_SEVERITIES: Final = tuple(ImageSeverity)


def _strike(connection: sa.Connection, digest: str, intent: Intent, *, since: int) -> Struck:
    """Let every machine of an image be looked after at once, and take from it what it could use."""
    of_image = _instances.c.image == digest
    living = sa.and_(of_image, _instances.c.ended_at.is_(None))
    rows = connection.execute(sa.select(_instances).where(living)).mappings().all()
    coming = [row for row in rows if row["state"] in _COMING]
    for row in coming:
        enrolments.withdraw(connection, binding_of(dict(row)), intent)
    connection.execute(sa.update(_instances).where(living).values(tended_until=0))
    names = sa.select(_instances.c.runner_id).where(of_image, _instances.c.runner_id.is_not(None))
    reason = f"image {digest} is compromised: {intent.reason}"
    runners = distrust.mark(
        connection, tables.runners.c.runner_id.in_(names), since=since, reason=reason
    )
    return Struck(machines=len(rows), tokens=len(coming), runners=runners)


def _move(connection: sa.Connection, name: str, state: ImageState, intent: Intent) -> ImageRecord:
    digest = digest_of(connection, name)
    row, now = changes.find(connection, IMAGE, digest, lock=True), database_now(connection)
    if row["state"] != state.value:
        _change(connection, row, state, intent, severity=None, now=now)
        _tell(connection, f"image.{_VERBS[state]}", digest, intent, now=now)
    return show(connection, digest)


_VERBS: Final = {ImageState.TRUSTED: "trust", ImageState.RETIRED: "retire"}


def _change(
    connection: sa.Connection,
    row: Row,
    state: ImageState,
    intent: Intent,
    *,
    severity: str | None,
    now: int,
) -> None:
    values = {"severity": severity, "state_reason": intent.reason, "changed_at": now}
    changes.move(connection, IMAGE, row, state, reason=intent.reason, now=now, **values)


def name(connection: sa.Connection, alias: str, target: str, intent: Intent) -> None:
    """Let an alias point at an image from now on; fleets keep the digest that they have (IMG-015).

    Raises:
        NotFound: there is no such image.
        InvalidRequest: the alias looks like a digest.
    """
    if _DIGEST.fullmatch(alias) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", alias):
        raise InvalidRequest(
            "this is no alias",
            field="alias",
            value=alias,
            allowed="up to 100 letters, digits, dots, underscores and hyphens",
        )
    digest, now = digest_of(connection, target), database_now(connection)
    values = {"digest": digest, "changed_at": now}
    changes.upsert(connection, _aliases, {"alias": alias, **values}, changes=values)
    _tell(connection, "image.alias", digest, intent, alias, now=now)


def digest_of(connection: sa.Connection, said: str) -> str:
    """Tell the digest of a registered image, by alias or by digest.

    Raises:
        NotFound: nothing is registered under this.
    """
    found = _resolved(connection, said)
    query = sa.select(_images.c.digest).where(_images.c.digest == found)
    if found is None or connection.execute(query).first() is None:
        raise NotFound(f"no image {said}", field="image", value=said)
    return found


def _resolved(connection: sa.Connection, said: str) -> str | None:
    if _DIGEST.fullmatch(said):
        return said
    query = sa.select(_aliases.c.digest).where(_aliases.c.alias == said)
    return connection.execute(query).scalar_one_or_none()


def settled(
    connection: sa.Connection, spec: FleetSpec, present: FleetSpec | None, keys: ImageKeys
) -> str:
    """Look up the image that a document names, and insist that its fleet may have it.

    One that the fleet has at present it may keep, whatever became of that, unless the document
    demands more of images now.

    Raises:
        NotFound: it is neither an alias nor a digest.
        Conflict: nobody has registered it, it is not trusted, or nobody knows how it was made.
    """
    said = spec.capacity.image
    digest = _resolved(connection, said) if said else ""
    if digest is None:
        raise NotFound(
            f"no image {said}", field="capacity.image", value=said, allowed="a digest or an alias"
        )
    if digest and not _may_keep(digest, spec, present):
        demand_fit(connection, spec, digest, keys)
    return digest


def _may_keep(digest: str, spec: FleetSpec, present: FleetSpec | None) -> bool:
    if present is None or digest != present.capacity.image:
        return False
    return _DEMANDS.index(_demand(spec)) <= _DEMANDS.index(_demand(present))


_DEMANDS: Final = tuple(ImageDemand)


def _demand(spec: FleetSpec) -> ImageDemand:
    least = ImageDemand.ATTESTED if spec.capacity.trust in RESTRICTED_TRUST else ImageDemand.ANY
    return max(spec.images, least, key=_DEMANDS.index)


def demand_fit(connection: sa.Connection, spec: FleetSpec, digest: str, keys: ImageKeys) -> None:
    """Insist that a fleet may begin to use an image (IMG-006, GAT-016).

    Raises:
        Conflict: nobody has registered it, it is not trusted, or nobody knows how it was made.
    """
    demand = ImageDemand.SIGNED if keys.is_required else _demand(spec)
    row = demand_trusted(connection, digest)
    if row is None:
        if demand is not ImageDemand.ANY:
            raise _unfit(digest, "is not registered", "`forgeyard image add`, or images: any")
        return
    image = codec.decode(RunnerImage, row["image"])
    if demand in (ImageDemand.ATTESTED, ImageDemand.SIGNED) and not image.is_attested:
        allowed = "one registered with builder, source, SBOM and signature"
        raise _unfit(digest, "has no complete record of how it was made", allowed)
    if demand is ImageDemand.SIGNED and not _is_signed(image, keys):
        allowed = f"one whose record is signed by {_known(keys)}"
        raise _unfit(digest, "has no signature that can be verified", allowed)


def demand_trusted(connection: sa.Connection, digest: str) -> Row | None:
    """Insist that an image is trusted, if it is registered; return its row, locked.

    Raises:
        Conflict: it is registered and not trusted.
    """
    query = sa.select(_images).where(_images.c.digest == digest).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    if row is not None and row["state"] != ImageState.TRUSTED.value:
        raise _unfit(digest, f"is {row['state']}", "a trusted one")
    return None if row is None else dict(row)


def _unfit(digest: str, what: str, allowed: str) -> Conflict:
    return Conflict(f"image {digest} {what}", field="image", value=digest, allowed=allowed)


def show(connection: sa.Connection, said: str) -> ImageRecord:
    """Show an image.

    Raises:
        NotFound: there is no such image.
    """
    row = changes.find(connection, IMAGE, digest_of(connection, said))
    return _record(row, _names(connection), _counts(connection))


def list_all(connection: sa.Connection) -> tuple[ImageRecord, ...]:
    """List images, the newest first."""
    query = sa.select(_images).order_by(_images.c.created_at.desc(), _images.c.digest)
    names, counts = _names(connection), _counts(connection)
    rows = connection.execute(query.limit(MOST_SHOWN)).mappings()
    return tuple(_record(dict(row), names, counts) for row in rows)


def _names(connection: sa.Connection) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in connection.execute(sa.select(_aliases).order_by(_aliases.c.alias)):
        found[row.digest] = (*found.get(row.digest, ()), row.alias)
    return found


def _counts(connection: sa.Connection) -> Mapping[str, int]:
    query = (
        sa.select(_instances.c.image, sa.func.count())
        .where(_instances.c.may_exist == 1)
        .group_by(_instances.c.image)
    )
    return {image: count for image, count in connection.execute(query)}


def _record(
    row: Row, names: Mapping[str, tuple[str, ...]], counts: Mapping[str, int]
) -> ImageRecord:
    return ImageRecord(
        image=codec.decode(RunnerImage, row["image"]),
        state=ImageState(row["state"]),
        state_reason=row["state_reason"],
        severity=None if row["severity"] is None else ImageSeverity(row["severity"]),
        aliases=names.get(row["digest"], ()),
        machines=counts.get(row["digest"], 0),
        created_at=row["created_at"],
        changed_at=row["changed_at"],
    )


def _tell(
    connection: sa.Connection,
    action: str,
    digest: str,
    intent: Intent,
    said: str = "",
    *,
    now: int,
) -> None:
    changes.audit(
        connection,
        actor=intent.actor,
        channel=intent.channel,
        action=action,
        target=digest,
        detail=": ".join(part for part in (said, intent.reason) if part),
        now=now,
    )
