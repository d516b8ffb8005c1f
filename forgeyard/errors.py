"""Every error that crosses a Forgeyard boundary, and what a caller may do about it.

* ForgeyardError
  - Rejected       the request is wrong; retrying unchanged cannot help
  - Conflict       somebody else won; re-read and decide again
  - Unavailable    a dependency is down; back off and retry
  - Ambiguous      an effect may have happened; inspect before retrying
  - Corrupt        an invariant is broken; stop and page a human

A subclass fixes `code` (stable, part of the API), the HTTP status and the command line's exit code.
"""

import re
from typing import ClassVar, Final

from forgeyard.redaction import redacted

_SECRET_USER: Final = re.compile(r"\b(https?://)[^/\s]*@")
_PASSWORD: Final = re.compile(r"\b([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s]*@")


class ForgeyardError(Exception):
    """Base of all errors that Forgeyard raises on purpose.

    `field` names what was wrong, `value` what was given (shortened), `allowed` what would do.
    """

    code: ClassVar[str] = "forgeyard.error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = None if value is None else shortened(value)
        self.allowed = allowed


def shortened(value: object, limit: int = 120) -> str:
    """Print a value for an error message, never longer than `limit` characters."""
    text = redacted(without_credentials(str(value)))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def without_credentials(text: str) -> str:
    """Take the passwords out of URLs, and the users where they may be tokens: in http and https."""
    return _PASSWORD.sub(r"\1@", _SECRET_USER.sub(r"\1", text))


class Rejected(ForgeyardError):
    """The request is wrong; sending it again unchanged cannot help."""

    code = "forgeyard.rejected"
    status = 422
    exit_code = 2


class InvalidRequirements(Rejected):
    """A job asks for something that can never be satisfied as written."""

    code = "requirements.invalid"


class InvalidQuantity(Rejected):
    """A quantity such as `500m` or `0.5Gi` could not be read."""

    code = "quantity.invalid"


class InvalidFile(Rejected):
    """A file is malformed; carries where. Lines and columns count from 1."""

    code = "file.invalid"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: str | None = None,
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        super().__init__(message, field=field, value=value, allowed=allowed)
        self.file = file
        self.line = line
        self.column = column


class InvalidRunFile(InvalidFile):
    """A run file is malformed."""

    code = "runfile.invalid"


class InvalidPolicy(InvalidFile):
    """A scheduling policy has another shape, or numbers that are not allowed."""

    code = "policy.invalid"


class InvalidRequest(Rejected):
    """A request does not have the promised shape."""

    code = "request.invalid"


class AmbiguousName(Rejected):
    """A beginning of an id fits more than one thing."""

    code = "name.ambiguous"


class TooLarge(Rejected):
    """Something from outside exceeds its limit."""

    code = "request.too_large"
    status = 413


class WrongDigest(Rejected):
    """Bytes do not hash to the digest that was promised for them."""

    code = "blob.wrong_digest"


class UnreadablePayload(Rejected):
    """What Temporal keeps is sealed with a key that is not known here, or was changed."""

    code = "codec.unreadable"


class UnfitForProduction(Rejected):
    """What is made for trying out was given to a production system."""

    code = "profile.unfit"


class UnsafePath(Rejected):
    """A path would leave the directory it belongs to."""

    code = "path.unsafe"


class IdempotencyMismatch(Rejected):
    """An idempotency key was used before with another body."""

    code = "idempotency.mismatch"


class NotFound(Rejected):
    """Nothing has this name or id."""

    code = "forgeyard.not_found"
    status = 404
    exit_code = 3


class Unauthenticated(Rejected):
    """No valid credentials came with the request."""

    code = "auth.unauthenticated"
    status = 401
    exit_code = 5


class Forbidden(Rejected):
    """The caller is known but may not do this."""

    code = "auth.forbidden"
    status = 403
    exit_code = 5


class TenantQuotaExceeded(Rejected):
    """The tenant's quota does not allow this."""

    code = "quota.tenant_exceeded"
    status = 403
    exit_code = 5


class Conflict(ForgeyardError):
    """Somebody else changed the row first; re-read it and decide again."""

    code = "forgeyard.conflict"
    status = 409
    exit_code = 4


class StaleRejected(Conflict):
    """The lease or session is no longer the valid one; nothing was changed."""

    code = "lease.stale"


class AlreadyLeased(Conflict):
    """Another scheduler leased the job first."""

    code = "lease.already_leased"


class Unavailable(ForgeyardError):
    """A dependency is down; back off and retry."""

    code = "forgeyard.unavailable"
    status = 503
    exit_code = 7
    retryable = True


class StoreUnavailable(Unavailable):
    """The database does not answer."""

    code = "store.unavailable"


class StoreHeld(Unavailable):
    """The store may be an older one that was put back; an operator has to confirm it."""

    code = "store.held"


class SchemaMismatch(Rejected):
    """The database's schema is not one that this release works on."""

    code = "schema.mismatch"


class Overloaded(Unavailable):
    """Too much waits already for this to make sense now; ask again later."""

    code = "scheduler.overloaded"


class Crowded(Unavailable):
    """This process answers as many requests as it can; ask again in a moment."""

    code = "api.crowded"


class PortTaken(Unavailable):
    """Another program listens on a port we need."""

    code = "standalone.port_taken"


class Throttled(Unavailable):
    """A provider asks for patience; `retry_after_s` says for how much, if it said."""

    code = "provider.throttled"

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, field: str = ""
    ) -> None:
        super().__init__(message, field=field or None)
        self.retry_after_s = retry_after_s


class OutOfCapacity(Unavailable):
    """A provider has no such machine left, at this place and on these terms: try another one."""

    code = "provider.out_of_capacity"


class ProviderQuotaExceeded(Unavailable):
    """The account may not have more of this; a person has to ask the provider."""

    code = "provider.quota_exceeded"


class NeverCameUp(Unavailable):
    """A machine was made, and no runner of its class came of it."""

    code = "provider.never_came_up"


class Denied(Rejected):
    """A provider does not allow our credentials to do this."""

    code = "provider.denied"


class InvalidSpec(Rejected):
    """A provider does not understand what it was asked for."""

    code = "provider.invalid_spec"


class Ambiguous(ForgeyardError):
    """An external effect may or may not have happened; inspect before retrying."""

    code = "forgeyard.ambiguous"
    status = 202
    exit_code = 7


class Corrupt(ForgeyardError):
    """An invariant is broken; stop and page a human."""

    code = "forgeyard.corrupt"


class AccountingCorrupt(Corrupt):
    """Reservations and leases disagree."""

    code = "accounting.corrupt"


class IllegalTransition(Corrupt):
    """Code asked for a change of state that no transition table allows."""

    code = "transition.illegal"
