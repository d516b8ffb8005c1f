"""Why a runner cannot take a job: every reason there is, and which of them pass with time."""

from dataclasses import dataclass
from enum import StrEnum

from forgeyard.model.gaps import Aspect
from forgeyard.model.origin import Origin
from forgeyard.model.runner import RunnerState
from forgeyard.scheduler.bounds import BoundKind


class RejectionCode(StrEnum):
    """Why a runner was turned down; explanations, events and metric labels print it (DIA-003)."""

    OFFLINE = "offline"
    DRAINING = "draining"
    SATURATED = "saturated"
    UNHEALTHY = "unhealthy"
    UNADMITTED = "unadmitted"
    SUSPECT = "suspect"
    RECENTLY_REFUSED = "recently_refused"
    DEGRADED = "degraded"
    POOL_DRAINING = "pool_draining"
    POOL_MAINTENANCE = "pool_maintenance"
    POOL_KEPT = "pool_kept"
    CAPABILITIES_STALE = "capabilities_stale"
    NOT_APART = "not_apart"
    NOT_SPREAD = "not_spread"
    NOT_BESIDE = "not_beside"
    PLATFORM_MISMATCH = "platform_mismatch"
    PLATFORM_UNKNOWN = "platform_unknown"
    ARCHITECTURE_MISMATCH = "architecture_mismatch"
    ARCHITECTURE_UNKNOWN = "architecture_unknown"
    OS_VERSION_MISMATCH = "os_version_mismatch"
    OS_VERSION_UNKNOWN = "os_version_unknown"
    AGENT_VERSION_MISMATCH = "agent_version_mismatch"
    AGENT_VERSION_UNKNOWN = "agent_version_unknown"
    TRUST_MISMATCH = "trust_mismatch"
    SPOT_FORBIDDEN = "spot_forbidden"
    POOL_TRUST = "pool_trust"
    POOL_RESERVED = "pool_reserved"
    POOL_NOT_ALLOWED = "pool_not_allowed"
    REGION_MISMATCH = "region_mismatch"
    REGION_UNKNOWN = "region_unknown"
    MISSING_LABEL = "missing_label"
    MISSING_TOOLCHAIN = "missing_toolchain"
    TOOLCHAIN_VERSION = "toolchain_version"
    TOOLCHAIN_VERSION_UNKNOWN = "toolchain_version_unknown"
    TOOLCHAIN_DIGEST = "toolchain_digest"
    TOOLCHAIN_DIGEST_UNKNOWN = "toolchain_digest_unknown"
    CPU_FEATURE_MISMATCH = "cpu_feature_mismatch"
    CPU_FEATURE_UNKNOWN = "cpu_feature_unknown"
    RUNTIME_MISMATCH = "runtime_mismatch"
    RUNTIME_UNKNOWN = "runtime_unknown"
    RUNTIME_VERSION_MISMATCH = "runtime_version_mismatch"
    RUNTIME_VERSION_UNKNOWN = "runtime_version_unknown"
    SANDBOX_MISMATCH = "sandbox_mismatch"
    SANDBOX_UNKNOWN = "sandbox_unknown"
    NETWORK_MISMATCH = "network_mismatch"
    NETWORK_UNKNOWN = "network_unknown"
    ISOLATION_MISMATCH = "isolation_mismatch"
    ISOLATION_UNKNOWN = "isolation_unknown"
    DEVICE_MISMATCH = "device_mismatch"
    DEVICE_UNKNOWN = "device_unknown"
    DEVICE_ATTRIBUTE_MISMATCH = "device_attribute_mismatch"
    DEVICE_ATTRIBUTE_UNKNOWN = "device_attribute_unknown"
    GPU_MISMATCH = "gpu_mismatch"
    GPU_UNKNOWN = "gpu_unknown"
    GPU_ID_MISMATCH = "gpu_id_mismatch"
    GPU_ID_UNKNOWN = "gpu_id_unknown"
    GPU_VENDOR_MISMATCH = "gpu_vendor_mismatch"
    GPU_VENDOR_UNKNOWN = "gpu_vendor_unknown"
    GPU_MODEL_MISMATCH = "gpu_model_mismatch"
    GPU_MODEL_UNKNOWN = "gpu_model_unknown"
    GPU_MEMORY_MISMATCH = "gpu_memory_mismatch"
    GPU_MEMORY_UNKNOWN = "gpu_memory_unknown"
    GPU_COMPUTE_CAPABILITY_MISMATCH = "gpu_compute_capability_mismatch"
    GPU_COMPUTE_CAPABILITY_UNKNOWN = "gpu_compute_capability_unknown"
    GPU_SHARING_MISMATCH = "gpu_sharing_mismatch"
    GPU_SHARING_UNKNOWN = "gpu_sharing_unknown"
    GPU_SAME_MODEL_MISMATCH = "gpu_same_model_mismatch"
    GPU_SAME_MODEL_UNKNOWN = "gpu_same_model_unknown"
    INSUFFICIENT_CPU = "insufficient_cpu"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    INSUFFICIENT_DISK = "insufficient_disk"
    INSUFFICIENT_SLOTS = "insufficient_slots"
    BUSY_CPU = "busy_cpu"
    BUSY_MEMORY = "busy_memory"
    BUSY_DISK = "busy_disk"
    BUSY_SLOTS = "busy_slots"
    BUSY_GPU = "busy_gpu"
    BUSY_DEVICE = "busy_device"


BY_STATE = {
    RunnerState.OFFLINE: RejectionCode.OFFLINE,
    RunnerState.DRAINING: RejectionCode.DRAINING,
    RunnerState.SATURATED: RejectionCode.SATURATED,
    RunnerState.UNHEALTHY: RejectionCode.UNHEALTHY,
    RunnerState.UNADMITTED: RejectionCode.UNADMITTED,
}
DEVICE_ASPECTS = frozenset(aspect for aspect in Aspect if aspect.startswith(("gpu", "device")))
BUSY = frozenset(code for code in RejectionCode if code.startswith("busy_"))
BY_BOUND = {
    BoundKind.APART: RejectionCode.NOT_APART,
    BoundKind.SPREAD: RejectionCode.NOT_SPREAD,
    BoundKind.BESIDE: RejectionCode.NOT_BESIDE,
}
BOUND = frozenset(BY_BOUND.values())
"""Reasons that lie in where other jobs are."""
PASSING = (
    BUSY
    | BOUND
    | {
        *BY_STATE.values(),
        RejectionCode.SUSPECT,
        RejectionCode.RECENTLY_REFUSED,
        RejectionCode.DEGRADED,
        RejectionCode.POOL_DRAINING,
        RejectionCode.POOL_MAINTENANCE,
        RejectionCode.POOL_KEPT,
        RejectionCode.CAPABILITIES_STALE,
    }
)
"""Reasons that pass with time; all others last until the runner or the job changes."""

OF_THE_JOB = frozenset({RejectionCode.POOL_RESERVED, RejectionCode.SPOT_FORBIDDEN})
"""Lasting reasons that rest on more than a job's requirement class; none of them parks a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One hard reason against a pairing: what the job wants, and what the runner offers."""

    code: RejectionCode
    wanted: str
    offered: str
    path: str = ""
    """Which entry of the requirements it is about, if it is about one."""
    origin: Origin | None = None
    """Who added that entry."""

    @property
    def permanent(self) -> bool:
        """Tell whether waiting cannot help (DIA-006)."""
        return self.code not in PASSING

    @property
    def text(self) -> str:
        """Say it in one phrase whose subject is the runner."""
        if self.code in BUSY:
            return f"needs {self.wanted}, has {self.offered} free now"
        if self.code is RejectionCode.RECENTLY_REFUSED:
            return f"turned this job down a moment ago: {self.offered}"
        if self.code in PASSING - BOUND:
            return f"is {self.offered}"
        if self.code in BOUND:
            return f"needs {self.wanted}, is {self.offered}"
        return f"needs {self.wanted}, has {self.offered}"
