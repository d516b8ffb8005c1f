"""Credentials of twenty shapes and more are taken out of what we log, answer and record (S15)."""

import base64
import json
import logging
import random
import string
import time

import pytest

from forgeyard.cli import processes
from forgeyard.errors import shortened
from forgeyard.redaction import MASK, redacted

RNG = random.Random(7)


def letters(count: int, extra: str = "") -> str:
    """Draw letters and digits."""
    return "".join(RNG.choices(string.ascii_letters + string.digits + extra, k=count))


def upper(count: int) -> str:
    """Draw capitals and digits."""
    return "".join(RNG.choices(string.ascii_uppercase + string.digits, k=count))


KEY = "RSA PRIVATE KEY-----"
PEM = f"-----BEGIN {KEY}\n{letters(64)}\n{letters(64)}\n-----END {KEY}"
PASSWORD = letters(16)
URL = f"postgresql://forgeyard:{PASSWORD}@db.example.org/forgeyard"
JWT = f"eyJ{letters(20)}.eyJ{letters(30)}.{letters(43, '-_')}"
GCP = json.dumps({"type": "service_account", "private_key_id": letters(40), "private_key": PEM})
SHAPES = {
    "our API token": f"fya_{letters(43, '_-')}",
    "our enrolment token": f"fye_01J{upper(20)}_{letters(43)}",
    "AWS access key": f"AKIA{upper(16)}",
    "AWS session key": f"ASIA{upper(16)}",
    "AWS secret": f"aws_secret_access_key = {letters(40, '/+')}",
    "AWS secret in the environment": f"AWS_SECRET_ACCESS_KEY={letters(40)}",
    "GCP key file": GCP,
    "Google API key": f"AIza{letters(35)}",
    "Google access token": f"ya29.{letters(60)}",
    "Azure storage": f"AccountName=ci;AccountKey={letters(86, '+/')}==;EndpointSuffix=core",
    "Azure client secret": f"{letters(3)}8Q~{letters(34)}",
    "Azure SAS": f"https://ci.blob.example.org/x?sv=2024&sig={letters(43)}%3D",
    "JWT": JWT,
    "bearer": f"Authorization: Bearer {letters(40)}",
    "basic": f"authorization: basic {base64.b64encode(b'user:' + PASSWORD.encode()).decode()}",
    "PEM": PEM,
    "PEM cut off": PEM[:100],
    "PKCS8": PEM.replace("RSA ", ""),
    "encrypted PEM": PEM.replace("RSA", "ENCRYPTED"),
    "URL password": URL,
    "base64 of a URL password": base64.b64encode(URL.encode()).decode(),
    "URL-safe base64 of it": base64.urlsafe_b64encode(f"?>{URL}".encode()).decode(),
    "base64 of a PEM": base64.b64encode(PEM.encode()).decode(),
    "GitHub": f"ghp_{letters(36)}",
    "GitHub fine-grained": f"github_pat_{letters(60, '_')}",
    "GitLab": f"glpat-{letters(20)}",
    "Slack": f"xoxb-{letters(40)}",
    "npm": f"npm_{letters(36)}",
    "PyPI": f"pypi-{letters(80)}",
    "Stripe": f"sk_live_{letters(24)}",
    "a password": f"password={PASSWORD}",
    "a password in JSON": json.dumps({"db_password": PASSWORD}),
}
PLAIN = (
    "run_01J9ZK3V5T3W8R6Q2M4N0P7S1D is in state queued",
    f"sha256:{'0123456789abcdef' * 4}",
    "the token file is empty: run chmod 600 on it",
    "Authorization: this request carries no valid token",
    "https://github.com/example/project.git at 1f2e3d4c5b6a79808f9e0d1c2b3a495867768594",
    "http://127.0.0.1:8700/v1/runs?limit=10",
    "tests/integration/temporal/test_encryption.py::test_no_canary_is_in_temporals_database",
    "job build: needs 16 GiB, best has 12; attempt/job_01J9ZK3V5T3W8R6Q2M4N0P7S1D/2",
    "ö" * 50,
)


def secrets_in(shape: str) -> list[str]:
    """List what of a shape may not be seen: its longest words."""
    return [word for word in shape.replace("\\n", "\n").split() if len(word) > 30] or [shape]


@pytest.mark.parametrize("name", SHAPES)
def test_a_credential_is_taken_out_wherever_it_stands(name: str) -> None:
    shape = SHAPES[name]
    for around in ("{}", "it said: {} and went on", "x='{}'", "a\n{}\nb"):
        shown = redacted(around.format(shape))
        assert MASK in shown
        assert shape not in shown
        if "PEM" not in name and "GCP" not in name:
            assert PASSWORD not in shown
            assert not any(word in shown for word in secrets_in(shape) if "://" not in word)


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redacted(text) == text


def test_what_stands_around_a_credential_stays() -> None:
    assert redacted(URL) == f"postgresql://forgeyard:{MASK}@db.example.org/forgeyard"
    assert redacted("password=hunter2hunter2 user=me") == f"password={MASK} user=me"
    assert redacted(PEM + " and more") == f"{MASK} and more"


def test_a_value_in_an_error_is_redacted_before_it_is_shortened() -> None:
    for shape in SHAPES.values():
        assert shape not in shortened(f"it was {shape}", 100_000)
    assert "ghp_" not in shortened("x" * 100 + " " + SHAPES["GitHub"])


@pytest.mark.parametrize("name", SHAPES)
def test_our_own_logs_show_no_credential(name: str) -> None:
    shape = SHAPES[name]
    try:
        raise ValueError(f"cannot use {shape}")
    except ValueError as error:
        record = logging.LogRecord(
            "forgeyard.api", logging.ERROR, "x.py", 1, "%s failed", (shape,), None
        )
        record.exc_info = (ValueError, error, error.__traceback__)
    line = processes.Redacting("%(message)s").format(record)
    assert "failed" in line
    assert "Traceback" in line
    assert shape not in line


@pytest.mark.parametrize(
    "piece", ["a", "eyJ", "://a:", "password", "-----BEGIN PRIVATE KEY-----", "A="]
)
def test_a_hostile_text_is_read_in_time_that_grows_with_its_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 5
