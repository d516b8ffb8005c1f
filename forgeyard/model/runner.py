"""A machine that executes jobs, as the scheduler and its operators see it."""

from enum import IntEnum, StrEnum


class RunnerState(StrEnum):
    """Whether a runner takes work (MOD-003); only `online` does."""

    ONLINE = "online"
    DRAINING = "draining"
    SATURATED = "saturated"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    UNADMITTED = "unadmitted"
    """It is there, but has not been admitted, or is no longer: see its admission."""


class RunnerHealth(StrEnum):
    """How well a runner says it is, whatever the load (RUN-012)."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It works, but not as it should; policy says what it still gets."""
    UNHEALTHY = "unhealthy"


class Suspicion(IntEnum):
    """Why a runner gets no work although it is online; as numbers, the way rows hold them."""

    NONE = 0
    LOSS = 1
    """It lost a lease; its next heartbeat clears it."""
    CONFLICTS = 2
    """What was planned for it was refused again and again; a reconciliation clears it."""


class ResourcePressure(StrEnum):
    """What an agent says is short on its host right now."""

    NORMAL = "normal"
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    THERMAL = "thermal"
    CRITICAL = "critical"


class RejectReason(StrEnum):
    """Why an agent turned an offer down."""

    DRAINING = "draining"
    RESOURCE_PRESSURE = "resource_pressure"
    CAPABILITY_CHANGED = "capability_changed"
    DISK_INSUFFICIENT = "disk_insufficient"
    UNSUPPORTED_SPEC = "unsupported_spec"
    LOCAL_POLICY = "local_policy"
    INTERNAL_PREPARATION_FAILURE = "internal_preparation_failure"
