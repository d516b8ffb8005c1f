"""One machine of a fleet, from the wish for it to the proof that it is gone.

It is Forgeyard's own object: neither the provider's instance nor the runner on it (PRV-006,
PRV-007). What may exist counts, whatever its state; only an inspection says that it does not.
"""

from enum import StrEnum


class CapacityInstanceState(StrEnum):
    """Where a machine stands (FLM-015)."""

    REQUESTED = "requested"
    """An intent: the provider has not been asked yet."""
    PROVISIONING = "provisioning"
    """The provider was asked; whether it has heard is for an inspection to say."""
    BOOTSTRAPPING = "bootstrapping"
    """It was seen running."""
    ENROLLING = "enrolling"
    """Its token was redeemed."""
    HEALTHY = "healthy"
    """Its runner is admitted."""
    DRAINING = "draining"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    FAILED = "failed"
    """It is no use any more; what may exist of it is being taken away."""
    QUARANTINED = "quarantined"
    """Kept for a look; it gets no work, and goes when an operator says so or its time is up."""


class ScaleReason(StrEnum):
    """Why a machine is wanted (PLN-002)."""

    QUEUED_DEMAND = "queued_demand"
    WARM_DEFICIT = "warm_deficit"
    MINIMUM = "minimum"
    RESERVATION = "reservation"
    MANUAL = "manual"
    FORECAST = "forecast"
    REPLACEMENT = "replacement"


class ScaleDownReason(StrEnum):
    """Why a machine is let go."""

    IDLE = "idle"
    ABOVE_MAXIMUM = "above_maximum"
    MAX_AGE = "max_age"
    JOBS_DONE = "jobs_done"
    IMAGE = "image"
    INTERRUPTED = "interrupted"
    """Its provider said that it will take it away."""
    OPERATOR = "operator"
    FLEET_DRAINING = "fleet_draining"
    UNUSABLE = "unusable"


class MachineState(StrEnum):
    """What a provider says of a machine, in one language for all providers."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    GONE = "gone"
    """It said that it is no more; that it says nothing is not that."""


class OperationState(StrEnum):
    """How far a call to a provider has come, as far as is known (PRV-003)."""

    PENDING = "pending"
    """Written down, not sent."""
    IN_PROGRESS = "in_progress"
    """It was heard: the machine is seen, and is not up yet."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It may have happened: look before anything else."""
