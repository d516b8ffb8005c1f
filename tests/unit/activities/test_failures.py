"""How our errors look to Temporal."""

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.failures import translated
from forgeyard.errors import (
    Ambiguous,
    Corrupt,
    ForgeyardError,
    NotFound,
    StaleRejected,
    StoreUnavailable,
)


def _raised(error: Exception) -> ApplicationError:
    with pytest.raises(ApplicationError) as caught, translated():
        raise error
    return caught.value


@pytest.mark.parametrize("kind", [NotFound, StaleRejected, Ambiguous, Corrupt])
def test_what_a_retry_cannot_help_is_not_retried(kind: type[ForgeyardError]) -> None:
    assert _raised(kind("no")).non_retryable


def test_an_outage_is_retried() -> None:
    assert not _raised(StoreUnavailable("down")).non_retryable


def test_losing_a_race_raises_no_alarm() -> None:
    assert _raised(StaleRejected("late")).category is ApplicationErrorCategory.BENIGN
    assert _raised(NotFound("gone")).category is ApplicationErrorCategory.UNSPECIFIED


def test_code_and_fields_travel() -> None:
    error = _raised(NotFound("no attempt", field="attempt_id", value="att_1", allowed="a real id"))
    assert error.type == "forgeyard.not_found"
    assert error.details[0] == {"field": "attempt_id", "value": "att_1", "allowed": "a real id"}


def test_a_bug_is_not_disguised() -> None:
    with pytest.raises(KeyError), translated():
        raise KeyError("bug")
