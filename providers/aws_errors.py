"""Amazon's error codes in our words: by code, never by message; what is unknown is for later."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, Field, ValidationError
from pydantic.alias_generators import to_pascal

from forgeyard.errors import (
    Ambiguous,
    Denied,
    ForgeyardError,
    InvalidSpec,
    NotFound,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
    Unavailable,
)

CODES: Final[Mapping[type[ForgeyardError], tuple[str, ...]]] = {
    Throttled: (
        *("RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled"),
        *("EC2ThrottledException", "SlowDown", "TooManyRequestsException"),
        *("RequestThrottledException", "PriorRequestNotComplete", "BandwidthLimitExceeded"),
    ),
    OutOfCapacity: (
        *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity"),
        *("InsufficientReservedInstanceCapacity", "InsufficientCapacityOnHost"),
        *("InsufficientFreeAddressesInSubnet", "InsufficientAddressCapacity"),
        *("InsufficientVolumeCapacity", "UnfulfillableCapacity", "ReservationCapacityExceeded"),
        # Of this kind of machine, in this zone or for this price.
        *("Unsupported", "SpotMaxPriceTooLow"),
    ),
    ProviderQuotaExceeded: (
        *("MaxSpotInstanceCountExceeded", "MaxSpotFleetRequestCountExceeded"),
        *("VcpuLimitExceeded", "InstanceLimitExceeded", "InstanceCreditLimitExceeded"),
        *("ResourceLimitExceeded", "HostLimitExceeded", "VolumeLimitExceeded"),
        *("MaxIOPSLimitExceeded", "NetworkInterfaceLimitExceeded", "PrivateIpAddressLimitExceeded"),
        *("SecurityGroupsPerInstanceLimitExceeded", "ConcurrentTagAccess"),
    ),
    Denied: (
        *("UnauthorizedOperation", "AuthFailure", "AccessDenied", "AccessDeniedException"),
        *("InvalidClientTokenId", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"),
        *("ExpiredTokenException", "RequestExpired", "UnrecognizedClientException"),
        *("MissingAuthenticationToken", "IncompleteSignature", "OptInRequired", "Blocked"),
        *("PendingVerification", "OperationNotPermitted", "ServiceLinkedRoleCreationNotPermitted"),
        *("AuthServiceLinkedRoleCreationNotPermitted", "KMS.AccessDeniedException"),
    ),
    InvalidSpec: (
        *("IdempotentParameterMismatch", "MissingParameter", "UnknownParameter"),
        *("MalformedQueryString", "ValidationError", "UnsupportedOperation"),
    ),
    NotFound: (
        *("IdempotentInstanceTerminated", "InvalidInstanceID.NotFound"),
        *("InvalidSpotInstanceRequestID.NotFound", "AWS.SimpleQueueService.NonExistentQueue"),
    ),
}
"""The table; a code that begins with `Invalid` and is not in it means a wrong request."""
DRY_RUN: Final = "DryRunOperation"
"""What a call is refused with that would have worked."""
_KIND: Final = {code: kind for kind, codes in CODES.items() for code in codes}
_LONGEST_WAIT_S: Final = 3_600


class _Said(BaseModel, frozen=True, alias_generator=to_pascal):
    code: str = Field(default="", max_length=200)


class _Meta(BaseModel, frozen=True):
    status: int = Field(default=0, alias="HTTPStatusCode")
    headers: dict[str, str] = Field(default={}, alias="HTTPHeaders")


class _Coded(BaseModel, frozen=True):
    error: _Said = Field(default=_Said(), alias="Error")


class Refusal(BaseModel, frozen=True):
    """An error as EC2 or SQS answered it."""

    error: _Said = Field(default=_Said(), alias="Error")
    meta: _Meta = Field(default=_Meta(), alias="ResponseMetadata")

    @property
    def code(self) -> str:
        """Name what went wrong."""
        return self.error.code

    def retry_after_s(self) -> float | None:
        """Read how long to wait, if it was said in seconds."""
        text = self.meta.headers.get("retry-after", "")
        return min(float(text), _LONGEST_WAIT_S) if text.isdecimal() else None


def read(response: object) -> Refusal:
    """Read an error's answer; a code stays one whatever came with it (FLT-080)."""
    for kind in (Refusal, _Coded):
        try:
            return Refusal.model_validate(kind.model_validate(response).model_dump(by_alias=True))
        except ValidationError:
            continue
    return Refusal()


def ours(refusal: Refusal, *, what: str, writes: bool) -> ForgeyardError:
    """Say it in our words. A server's fault may come after a write has happened (FLT-001)."""
    code = refusal.code or "an answer without a code"
    text = f"{what}: {code}"
    kind = _KIND.get(refusal.code)
    if kind is Throttled:
        return Throttled(text, retry_after_s=refusal.retry_after_s())
    if kind is not None:
        return kind(text, field="offering" if kind is InvalidSpec else None, value=code)
    if writes and (refusal.meta.status >= 500 or not refusal.code):
        return Ambiguous(text, value=code)
    if refusal.code.startswith("Invalid"):
        return InvalidSpec(text, field="offering", value=code)
    return Unavailable(text, value=code)
