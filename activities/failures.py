"""Turns Forgeyard's errors into Temporal's, in one place for every activity.

What may be retried is the error's own property; losing a race is not worth an alarm, so a
conflict is marked benign and the workflow reads again.
"""

from collections.abc import Generator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from forgeyard.errors import Conflict, ForgeyardError


def application_error(error: ForgeyardError) -> ApplicationError:
    """Describe an error to Temporal: its code is the type, its fields are the details."""
    benign = isinstance(error, Conflict)
    return ApplicationError(
        error.message,
        {"field": error.field, "value": error.value, "allowed": error.allowed},
        type=error.code,
        non_retryable=not error.retryable,
        category=ApplicationErrorCategory.BENIGN
        if benign
        else ApplicationErrorCategory.UNSPECIFIED,
    )


@contextmanager
def translated() -> Generator[None]:
    """Raise what happens inside as Temporal understands it.

    Raises:
        ApplicationError: for every error that Forgeyard raises on purpose.
    """
    try:
        yield
    except ForgeyardError as error:
        raise application_error(error) from error


class TypedFailures(Interceptor):
    """Translates the errors of every activity of a worker, so that none can forget to."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Put the translation around an activity."""
        return _Translating(next)


class _Translating(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> object:
        with translated():
            return await super().execute_activity(input)
