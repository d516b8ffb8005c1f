"""Authorities, certificates and enrolled runners for tests."""

from datetime import timedelta

import sqlalchemy as sa
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from forgeyard import clock
from forgeyard.model.enrolment import Cloud, Grant
from forgeyard.store import enrolments, identities
from forgeyard.store.enrolments import Alarm, EnrolmentView, Wanted
from forgeyard.store.identities import Issued, Sign, Signed
from forgeyard.store.proven_machines import Prove
from forgeyard.store.shares import Intent
from forgeyard.trust import certificates, keys, tokens
from forgeyard.trust.certificates import Signer
from forgeyard.trust.evidence import Doubt, Facts, Unproved
from tests.builders import RNG

INTENT = Intent(actor="tester", channel="api", reason="a test")
TOKEN_KEY = b"k" * 32


def an_authority() -> Signer:
    """Make a root and an issuing authority below it; return the latter."""
    root_key, key = keys.new_key(), keys.new_key()
    now, lasts = clock.now(), timedelta(days=1)
    root = certificates.root(root_key, "x", now=now, lasts=lasts)
    by = Signer(certificate=root, key=root_key)
    made = certificates.intermediate(key.public_key(), "x", 1, by=by, now=now, lasts=lasts)
    return Signer(certificate=made, key=key)


def der_of(certificate: x509.Certificate) -> bytes:
    """Write a certificate as TLS hands it over."""
    return certificate.public_bytes(serialization.Encoding.DER)


def mark_of(enrolment_id: str, binding: str) -> str:
    """Say what stands in the store for the token of an enrolment."""
    return tokens.mark(TOKEN_KEY, tokens.derive(TOKEN_KEY, enrolment_id, binding))


class Signs:
    """Signs whatever is asked for, and counts."""

    def __init__(self, *, lasts_ms: int = 3_600_000) -> None:
        self.made = 0
        self.lasts_ms = lasts_ms

    def __call__(self, runner_id: str) -> Signed:
        self.made += 1
        now = int(clock.now().timestamp() * 1000)
        serial = f"{RNG.getrandbits(128):x}"
        return Signed(serial=serial, pem=f"{serial}/{runner_id}", ends_at=now + self.lasts_ms)


def invite(
    connection: sa.Connection, name: str = "runner-1", grant: Grant | None = None, **changed: object
) -> EnrolmentView:
    """Mint an enrolment for a host."""
    wanted = {"binding": f"host/{name}/1", "runner_name": name, "grant": grant or Grant()}
    return enrolments.mint(
        connection, Wanted(**{**wanted, **changed}), INTENT, mark=mark_of, rng=RNG
    )


def no_evidence(cloud: Cloud) -> Facts | Unproved:
    """Prove nothing."""
    return Unproved(doubt=Doubt.MISSING, detail="it brought nothing")


def redeem(
    connection: sa.Connection,
    view: EnrolmentView,
    key: str = "sha256/one",
    sign: Sign | None = None,
    prove: Prove | None = None,
) -> object:
    """Bring the token of an enrolment, with a key."""
    return enrolments.redeem(
        connection,
        view.enrolment_id,
        mark_of(view.enrolment_id, view.binding),
        key,
        sign=sign or Signs(),
        prove=prove or no_evidence,
        rng=RNG,
    )


def enrolled(
    connection: sa.Connection, name: str = "runner-1", grant: Grant | None = None
) -> Issued:
    """Mint and redeem."""
    made = redeem(connection, invite(connection, name, grant), f"sha256/{name}")
    assert isinstance(made, Issued)
    return made


def serials(connection: sa.Connection, runner_id: str) -> list[str]:
    """List the serials of a runner's certificates, the oldest first."""
    return [one.serial for one in reversed(identities.list_of(connection, runner_id))]


__all__ = ["Alarm", "Signs", "an_authority", "der_of", "enrolled", "invite", "redeem", "serials"]
