"""Certificates of runners: given out, replaced by the next one in time, revoked.

A runner has one newest certificate. Whoever asks for the next one with an older one has either not
heard the answer, and then brings the same key, or is a copy of the machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Forbidden, InvalidRequest, NotFound
from forgeyard.model.enrolment import Grant
from forgeyard.store import codec, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now

OVERLAP_MS: Final = 5 * 60 * 1000
"""How long a certificate is good that has been replaced: connections that are open go on."""
CLONED: Final = "two machines have its certificate"
_certificates, _enrolments = tables.certificates, tables.enrolments


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A certificate as its authority made it."""

    serial: str
    pem: str
    ends_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate as it is handed over."""

    runner_id: str
    runner_name: str
    pem: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloned:
    """Somebody asks with a certificate that was replaced long ago, and with a key of their own."""

    runner_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateView:
    """A certificate, for those who look after runners; instants are epoch milliseconds."""

    serial: str
    generation: int
    key: str
    issued_at: int
    ends_at: int
    replaced_at: int | None
    revoked_at: int | None
    revoked_reason: str | None


Sign = Callable[[str], Signed]
"""Makes a certificate for a runner's id, for the key that the caller has in hand."""


def issue(
    connection: sa.Connection, row: Row, key: str, *, generation: int, sign: Sign, now: int
) -> Issued:
    """Give out a certificate for the runner of an enrolment."""
    made = sign(row["runner_id"])
    connection.execute(
        sa.insert(_certificates).values(
            serial=made.serial,
            runner_id=row["runner_id"],
            enrolment_id=row["enrolment_id"],
            generation=generation,
            key=key,
            pem=made.pem,
            issued_at=now,
            ends_at=made.ends_at,
        )
    )
    return Issued(
        runner_id=row["runner_id"],
        runner_name=row["runner_name"],
        pem=made.pem,
        generation=generation,
    )


def again(row: Row, runner_name: str) -> Issued:
    """Hand over once more what was given out before."""
    return Issued(
        runner_id=row["runner_id"],
        runner_name=runner_name,
        pem=row["pem"],
        generation=row["generation"],
    )


def renew(connection: sa.Connection, serial: str, key: str, *, sign: Sign) -> Issued | Cloned:
    """Give out the next certificate to who has this one.

    Raises:
        NotFound: this certificate is unknown, which a restored database may make it.
        Forbidden: it was revoked.
        InvalidRequest: the key is that of another certificate.
    """
    presented = _lock_chain(connection, serial)
    now, newest = database_now(connection), presented[-1]
    own = next(row for row in presented if row["serial"] == serial)
    if own["revoked_at"] is not None:
        raise Forbidden("this certificate was revoked", field="certificate", value=serial)
    enrolment = _enrolment(connection, own["enrolment_id"])
    if own is not newest:
        is_lost_answer = newest["key"] == key and newest["generation"] == own["generation"] + 1
        if not is_lost_answer:
            return Cloned(runner_id=own["runner_id"])
        return again(newest, enrolment["runner_name"])
    demand_fresh(connection, key)
    _replace(connection, own["serial"], now=now)
    generation = own["generation"] + 1
    return issue(connection, enrolment, key, generation=generation, sign=sign, now=now)


def _lock_chain(connection: sa.Connection, serial: str) -> list[Row]:
    """Lock the certificates of the runner that has this one, the newest last."""
    own = connection.execute(
        sa.select(_certificates.c.runner_id).where(_certificates.c.serial == serial)
    ).scalar_one_or_none()
    if own is None:
        raise NotFound("this certificate is unknown here", field="certificate", value=serial)
    query = (
        sa.select(_certificates)
        .where(_certificates.c.runner_id == own)
        .order_by(_certificates.c.generation)
        .with_for_update()
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def demand_fresh(connection: sa.Connection, key: str, *, enrolment_id: str = "") -> None:
    """Insist that no certificate of another enrolment, or no other one at all, has this key.

    Raises:
        InvalidRequest: one has.
    """
    row = of_key(connection, key)
    if row is not None and row["enrolment_id"] != enrolment_id:
        raise InvalidRequest(
            "this key is that of another certificate",
            field="request",
            value=key,
            allowed="a key that was made for this request",
        )


def of_key(connection: sa.Connection, key: str) -> Row | None:
    """Find the certificate that was given out for a public key."""
    query = sa.select(_certificates).where(_certificates.c.key == key)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def newest_generation(connection: sa.Connection, runner_id: str) -> int:
    """Tell how many certificates a runner was given."""
    query = sa.select(sa.func.max(_certificates.c.generation))
    found = connection.execute(query.where(_certificates.c.runner_id == runner_id)).scalar()
    return int(found or 0)


def revoke(connection: sa.Connection, runner_id: str, *, reason: str, now: int) -> int:
    """Revoke every certificate of a runner; tell how many were good."""
    done = connection.execute(
        sa.update(_certificates)
        .where(_certificates.c.runner_id == runner_id, _certificates.c.revoked_at.is_(None))
        .values(revoked_at=now, revoked_reason=reason)
    )
    return done.rowcount


def refused_serials(connection: sa.Connection) -> frozenset[str]:
    """List the certificates that would be good by their own account, and are not."""
    now = database_now(connection)
    query = sa.select(_certificates.c.serial).where(
        _certificates.c.ends_at > now,
        sa.or_(
            _certificates.c.revoked_at.is_not(None),
            _certificates.c.replaced_at < now - OVERLAP_MS,
        ),
    )
    return frozenset(connection.execute(query).scalars())


def grant_of(connection: sa.Connection, runner_id: str) -> tuple[str, str, Grant] | None:
    """Read the id, the runner's name and the grants of the newest enrolment of a runner."""
    query = (
        sa.select(_enrolments.c.enrolment_id, _enrolments.c.runner_name, _enrolments.c.grants)
        .where(_enrolments.c.runner_id == runner_id)
        .order_by(_enrolments.c.used_at.desc(), _enrolments.c.enrolment_id.desc())
    )
    row = connection.execute(query.limit(1)).one_or_none()
    return None if row is None else (row[0], row[1], codec.decode(Grant, row[2]))


def list_of(connection: sa.Connection, runner_id: str) -> tuple[CertificateView, ...]:
    """List the certificates of a runner, the newest first."""
    shown = tuple(CertificateView.__dataclass_fields__)
    query = (
        sa.select(*(_certificates.c[name] for name in shown))
        .where(_certificates.c.runner_id == runner_id)
        .order_by(_certificates.c.generation.desc())
    )
    return tuple(CertificateView(**row) for row in connection.execute(query.limit(100)).mappings())


def _replace(connection: sa.Connection, serial: str, *, now: int) -> None:
    own = _certificates.c.serial == serial
    connection.execute(sa.update(_certificates).where(own).values(replaced_at=now))


def _enrolment(connection: sa.Connection, enrolment_id: str) -> Row:
    query = sa.select(_enrolments).where(_enrolments.c.enrolment_id == enrolment_id)
    return dict(connection.execute(query).mappings().one())
