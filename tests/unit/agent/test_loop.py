"""What an agent's process writes about itself."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from forgeyard.agent.loop import AgentSettings, configure_log
from forgeyard.agent.process import Command
from forgeyard.config import LimitsConfig
from forgeyard.machine_settings import AgentConfig


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Log as an agent does, to where the test can read it; restore what was."""
    before, stream = structlog.get_config(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_log()
    yield stream
    structlog.configure(**before)


def test_a_traceback_in_the_log_shows_no_variables(written: io.StringIO) -> None:
    def broken(granted: dict[str, str]) -> None:
        raise RuntimeError(f"{len(granted)} granted")

    try:
        broken({"NPM_TOKEN": "".join(("ses", "ame"))})
    except RuntimeError:
        structlog.get_logger().exception("work broke off")
    assert "RuntimeError: 1 granted" in written.getvalue()
    assert "sesame" not in written.getvalue()


def test_what_holds_secrets_does_not_print_them() -> None:
    settings = AgentSettings(
        urls=("http://ci",), token="sesame", config=AgentConfig(), limits=LimitsConfig()
    )
    assert "sesame" not in repr(settings)
    assert "sesame" not in repr(Command(argv=("sh",), cwd=Path(), env={"NPM_TOKEN": "sesame"}))
