"""What the command line reads out of the API's answers about enrolments; see `shapes`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a cloud, by the word of that cloud."""

    cloud: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a machine has to be."""

    machine: Machine | None = None


NOTHING = Expected()


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What a machine is given."""

    trust: str
    expects: Expected = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """The right of a machine to become a runner; instants are epoch milliseconds."""

    enrolment_id: str
    runner_name: str
    state: str
    grant: Granted
    closes_at: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A new enrolment, with what the machine needs."""

    enrolment: Enrolment
    token: str = field(repr=False)
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutOut:
    """A runner that is in quarantine, and how many leases it lost."""

    runner: str
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate of a runner; instants are epoch milliseconds."""

    generation: int
    key: str
    ends_at: int
    replaced_at: int | None = None
    revoked_at: int | None = None
    revoked_reason: str | None = None
