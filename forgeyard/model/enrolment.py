"""How a machine becomes a runner: what an operator grants it, and how far it has come.

What a runner may be trusted with stands in the record of its enrolment. Names that begin with
`trusted.` mean something only there: an agent that offers one which was not granted is turned away.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from annotated_types import Ge, Le, MaxLen, MinLen

from forgeyard.model.capability import Architecture, Labels, Platform, TrustClass
from forgeyard.model.equipment import MAX_GPUS, Gpu, Word
from forgeyard.model.equipment import IsolationClass as Isolation
from forgeyard.model.units import LARGEST
from forgeyard.trust.evidence import MOST_EVIDENCE

TRUSTED: Final = "trusted."
"""Begins the names of labels, tools and devices that only an enrolment may give to a runner."""
MOST_GRANTED: Final = 64
Amount = Annotated[int, Ge(0), Le(LARGEST)]
Pem = Annotated[str, MaxLen(64 * 1024)]


class Admission(StrEnum):
    """How far a runner has come (BOO-013); only a verified one is there for the scheduler."""

    PENDING = "pending"
    """It has proved who it is; it has not said yet that it is well."""
    VERIFIED = "verified"
    REJECTED = "rejected"
    """It is not the machine that was expected; `runner show` says why."""
    QUARANTINED = "quarantined"
    """Its identity may be in other hands, or an operator shut it out; so it stays."""


class Cloud(StrEnum):
    """A cloud whose word about its machines can be checked."""

    AWS = "aws"


LAUNCHED_WITHIN_MS: Final = 3_600_000
LONGEST_LAUNCH_MS: Final = 365 * 24 * 3_600_000
"""A machine that was launched longer ago proves nothing by its cloud's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudMachine:
    """The machine that has to come, by the signed word of its cloud; empty asks for nothing."""

    cloud: Cloud = Cloud.AWS
    account: Annotated[str, MinLen(12), MaxLen(12)]
    region: Word = ""
    instance: Word = ""
    launched_within_ms: Annotated[int, Ge(1_000), Le(LONGEST_LAUNCH_MS)] = LAUNCHED_WITHIN_MS
    """How long ago it may have been launched when it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a machine must be at least; `None` and 0 ask for nothing."""

    platform: Platform | None = None
    architecture: Architecture | None = None
    cpu: Amount = 0
    """Thousandths of a core."""
    memory: Amount = 0
    """Bytes."""
    gpus: Annotated[tuple[Gpu, ...], MaxLen(MAX_GPUS)] = ()
    """Each of which it must have, or one at least as good."""
    machine: CloudMachine | None = None
    """Which machine of a cloud it has to be, by a second proof beside its token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an operator gives to a machine before it exists; no report of its own adds to it."""

    trust: TrustClass = TrustClass.UNTRUSTED_GENERAL
    pool: Word = ""
    """The pool that the runner is put into; empty means the default one."""
    labels: Labels = field(default_factory=dict[str, str])
    """Offered as they stand here, whatever the agent says."""
    trusted: Annotated[tuple[Word, ...], MaxLen(MOST_GRANTED)] = ()
    """Names of tools and devices that begin with `trusted.` and that it may offer."""
    isolation: Annotated[tuple[Isolation, ...], MaxLen(len(Isolation))] = ()
    """What stands around the machine itself, which nobody inside can see."""
    expects: Expectation = field(default_factory=Expectation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrol:
    """Ask for a certificate: a token, and a request that proves the possession of a new key."""

    token: Annotated[str, MaxLen(200)]
    request: Annotated[str, MaxLen(10 * 1024)]
    """PKCS#10 in PEM. Nothing in it counts but its public key and its signature."""
    clock_ms: Annotated[int, Ge(0), Le(LARGEST)]
    """What the machine takes for the time, in epoch milliseconds."""
    evidence: Annotated[str, MaxLen(MOST_EVIDENCE)] = ""
    """What its cloud has signed about the machine, if it was told to ask for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Ask for the next certificate, under the one in use."""

    request: Annotated[str, MaxLen(10 * 1024)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate with its chain, what is trusted, and the name it was given for."""

    runner_name: str
    certificate: Pem
    """The runner's own, then its issuer's."""
    authorities: Pem
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A request that was understood, and that an operator has to approve first."""

    runner_name: str
    key: str
    """The name of its public key, to be compared with what the machine prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """What signs here, for who has a pin of the root to compare it with."""

    certificates: Pem
