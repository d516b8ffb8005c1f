import pytest

from forgeyard.errors import InvalidRequirements
from forgeyard.model.capability import GENERAL_TRUST, Capabilities, TrustClass, parse_range


@pytest.mark.requirement("ELG-019")
@pytest.mark.parametrize("text", [">=3.11,<4", "==22.*", "", "~=1.4", "!=2.0"])
def test_a_pep_440_range_can_be_read(text: str) -> None:
    assert str(parse_range(text, field="python")) is not None


@pytest.mark.parametrize("text", ["3.11", "latest", ">=", ">=3.11 || <2", "^1.2"])
def test_another_range_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidRequirements) as refused:
        parse_range(text, field="jobs.a.requires.toolchains.python")
    error = refused.value
    assert (error.field, error.value) == ("jobs.a.requires.toolchains.python", text)
    assert "PEP 440" in (error.allowed or "")


def test_a_runner_that_says_nothing_is_not_trusted_with_secrets() -> None:
    assert Capabilities().trust is TrustClass.UNTRUSTED_GENERAL
    assert TrustClass.SIGNING_RESTRICTED not in GENERAL_TRUST
    assert TrustClass.CONFIDENTIAL not in GENERAL_TRUST
