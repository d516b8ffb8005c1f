"""A machine that executes jobs, as the scheduler and its operators see it."""

from enum import StrEnum


class RunnerState(StrEnum):
    """Whether a runner takes work (MOD-003); only `online` does."""

    ONLINE = "online"
    DRAINING = "draining"
    SATURATED = "saturated"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"


class RunnerHealth(StrEnum):
    """How well a runner says it is, whatever the load (RUN-012)."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It works, but not as it should; policy says what it still gets."""
    UNHEALTHY = "unhealthy"


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
