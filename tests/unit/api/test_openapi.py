"""The committed OpenAPI documents say what the code does."""

import json
from pathlib import Path

import pytest

from forgeyard.api import openapi
from forgeyard.api.auth import OPEN_PATHS
from forgeyard.api.enrolling import OPEN_TO_STRANGERS

DOCS = Path(__file__).parents[3] / "docs"


def test_the_committed_documents_have_not_drifted() -> None:
    assert openapi.drifted(DOCS) == (), "run python -m forgeyard.api.openapi"


def test_drift_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert openapi.main(["--check", str(tmp_path)]) == 1
    assert "openapi.json" in capsys.readouterr().out
    assert openapi.main([str(tmp_path)]) == 0
    assert openapi.main(["--check", str(tmp_path)]) == 0
    (tmp_path / openapi.AGENT).write_text("{}")
    assert openapi.drifted(tmp_path) == (openapi.AGENT,)


@pytest.mark.parametrize("name", [openapi.PUBLIC, openapi.AGENT])
def test_every_operation_documents_its_errors_and_its_token(name: str) -> None:
    document = json.loads(openapi.documents()[name])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "application/problem+json" in operation["responses"]["default"]["content"]
            assert operation["operationId"], (path, method)
            is_open = "security" not in operation
            assert is_open == (path in OPEN_PATHS | OPEN_TO_STRANGERS), path
    assert "Problem" in document["components"]["schemas"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize("name", [openapi.PUBLIC, openapi.AGENT])
def test_operation_ids_are_unique(name: str) -> None:
    document = json.loads(openapi.documents()[name])
    ids = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))
