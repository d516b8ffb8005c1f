"""What a fleet asks of an infrastructure, and how it answers.

An adapter translates, and decides nothing. It raises the errors of `forgeyard.errors` by the
provider's codes and never by its prose: `Throttled`, `OutOfCapacity`, `ProviderQuotaExceeded`,
`Denied`, `InvalidSpec`, `NotFound`, `Unavailable`, and `Ambiguous` where a call may have worked.
That a listing says nothing of a machine proves nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from forgeyard.model.capability import Platform
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import CapacityClass, FleetSpec, Market, Offering
from forgeyard.model.location import Micros

TAG_INSTALLATION: Final = "forgeyard:installation"
TAG_FLEET: Final = "forgeyard:fleet"
TAG_INSTANCE: Final = "forgeyard:instance"
TAG_OPERATION: Final = "forgeyard:operation"
TAG_IMAGE: Final = "forgeyard:image"
TAG_SCOPE: Final = "forgeyard:scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Whose a machine is; the same for every call about it (FRC-008)."""

    installation: str
    """The id of our store: two installations may share an account."""
    fleet_id: str
    instance_id: str
    scope: str = ""

    def tags(self, *, operation_key: str, image: str) -> dict[str, str]:
        """Write it as tags: an aid in finding a machine, never the proof of what it is."""
        tags = {
            TAG_INSTALLATION: self.installation,
            TAG_FLEET: self.fleet_id,
            TAG_INSTANCE: self.instance_id,
            TAG_OPERATION: operation_key,
            TAG_IMAGE: image,
            TAG_SCOPE: self.scope,
        }
        return {name: value for name, value in tags.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What a new machine needs to find its way home; the token is worth nothing once used."""

    url: str
    """Of the agent API."""
    token: str = field(default="", repr=False)
    """An enrolment token; empty where the machine is this host and its agents use the local one."""
    pin: str = ""
    """Of the authority's root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionRequest:
    """The wish for one machine; the same operation key is the same wish, word for word."""

    owner: Ownership
    operation_key: str
    """Names instance, generation and offering: at most 64 letters, digits and hyphens."""
    runner_name: str
    capacity: CapacityClass
    offering: Offering
    bootstrap: Bootstrap
    ref: str = ""
    """What the provider called it, once that is known."""
    image: str = ""
    """What the provider calls the image of the class there, if that is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A machine to look at: by the provider's name for it, else by operation key and tags."""

    owner: Ownership
    operation_key: str
    offering: Offering
    ref: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as its provider sees it."""

    ref: str
    """The provider's own name for it; unique for ever."""
    state: MachineState
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    image: str = ""
    machine: str = ""
    region: str = ""
    zone: str = ""
    launched_at: int | None = None
    """Epoch milliseconds, by the provider's clock."""
    detail: str = ""
    """Why it is in this state, in the provider's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All machines with the tags of an installation, or as many as could be read."""

    machines: tuple[Machine, ...]
    complete: bool
    """Whether every page was read; if not, what is missing may be there all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """A provider's word that a machine will be taken away; may come twice, late or never."""

    ref: str
    at: int | None = None
    """When, in epoch milliseconds, if it said."""
    is_final: bool = True
    """Whether it will happen, or is only likely."""
    receipt: str = ""
    """To be given back once it was written down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """What a provider has one price for: a kind of machine, at a place, on some terms."""

    platform: Platform
    machine: str
    region: str
    zone: str
    market: Market


def sku_of(spec: FleetSpec, offering: Offering) -> Sku:
    """Tell what the machines of an offering are priced by."""
    return Sku(
        platform=spec.capacity.platform,
        machine=offering.machine,
        region=offering.region,
        zone=offering.zone,
        market=offering.market,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a provider asks for an hour of a machine, or why that is not known."""

    sku: Sku
    cost: Micros | None
    """In millionths of the currency; `None`: it could not be learned."""
    at: int
    """When it was asked for, in epoch milliseconds."""
    source: str = ""
    """Where the provider says so."""
    currency: str = "USD"
    reason: str = ""
    """Why it is not known."""


IDENTITY: Final = "identity"
"""Names the check whose text says as whom we are let in; never a secret."""


class CheckLevel(StrEnum):
    """How one thing is that a doctor looks at."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a doctor looked at, and what there is to do (FRC-031)."""

    name: str
    level: CheckLevel
    text: str


class FleetProvider(Protocol):
    """One infrastructure; every call may take seconds, fail, or have worked although it failed."""

    @property
    def kind(self) -> str:
        """Name the sort of infrastructure: a label of metrics."""
        ...

    def inspect(self, sought: Sought) -> Machine | None:
        """Find a machine by its name, else by operation key *and* tags; `None`: it is not seen.

        One that ended is told as GONE for as long as the provider remembers it.
        """
        ...

    def list_machines(self, installation: str) -> Listing:
        """List what has our tags, in all places that the configuration names."""
        ...

    def provision(self, request: ProvisionRequest) -> Machine:
        """Make a machine, or find the one that this very request has made already."""
        ...

    def terminate(self, sought: Sought) -> None:
        """Ask for the end of a machine; asking twice is asking once, and nobody's is no error.

        That it was accepted is not that it has happened.
        """
        ...

    def interruptions(self) -> tuple[Interruption, ...]:
        """Fetch what has been announced, as much as comes at once."""
        ...

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Forget interruptions that were written down."""
        ...

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Look at credentials, images and places, changing nothing (FRC-032, FRC-034)."""
        ...


@runtime_checkable
class PricedProvider(Protocol):
    """A provider that also knows what its machines cost at present; not every one does."""

    def price(self, sku: Sku, *, now: int) -> Price:
        """Tell what it costs; what cannot be learned is told as unknown, and is no error."""
        ...
