"""The configuration: a misspelt setting is an error anywhere, and no secret is repeated."""

from pathlib import Path

import pytest

from forgeyard import config
from forgeyard.errors import InvalidRequest


@pytest.fixture(autouse=True)
def nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without any variable of ours."""
    for name in config.environment(tuple(config.child_environment())):
        if name.upper().startswith(config.PREFIX):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "name",
    [
        "FORGEYARD_APII__PORT",
        "FORGEYARD_PORT",
        "FORGEYARD_API_PORT",
        "FORGEYARD_DATA_DIR__X",
        "FORGEYARD_TOKEN_FIEL",
        "FORGEYARD_",
        "forgeyard_datadir",
    ],
)
def test_a_variable_that_nobody_reads_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "sesame")
    with pytest.raises(InvalidRequest, match=name) as caught:
        config.load()
    assert caught.value.field == name
    assert "FORGEYARD_API" in str(caught.value.allowed)
    assert caught.value.value is None


def test_an_unknown_key_of_a_group_is_an_error_that_does_not_repeat_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORGEYARD_STORE__PASSWORD", "sesame")
    with pytest.raises(InvalidRequest, match=r"store\.password") as caught:
        config.load()
    assert "sesame" not in f"{caught.value.message}{caught.value.value}"


@pytest.mark.parametrize(
    "name",
    [
        "FORGEYARD_URL",
        "FORGEYARD_TOKEN",
        "FORGEYARD_TOKEN_FILE",
        "FORGEYARD_TEST_DATABASE_URL",
        "FORGEYARD_DB_PASSWORD",
        "FORGEYARD_JOB_NAME",
        "FORGEYARD_LEASE_ID",
        "FORGEYARD",
    ],
)
def test_variables_that_mean_something_elsewhere_are_let_be(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "x")
    config.load()


def test_settings_are_read_from_the_environment_and_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "forgeyard.toml"
    file.write_text("[api]\nport = 1\nagent_port = 2\n")
    monkeypatch.setenv("FORGEYARD_CONFIG", str(file))
    monkeypatch.setenv("FORGEYARD_API__PORT", "3")
    monkeypatch.setenv("FORGEYARD_AGENT", '{"jobs": 7}')
    found = config.load()
    assert (found.api.port, found.api.agent_port, found.agent.jobs) == (3, 2, 7)


@pytest.mark.parametrize("text", [None, "[api", "[api]\nprot = 1\n", "\0"])
def test_a_file_that_is_missing_or_wrong_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "forgeyard.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("FORGEYARD_CONFIG", str(file))
    with pytest.raises(InvalidRequest):
        config.load()


def test_a_group_that_is_not_json_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGEYARD_API", "8700")
    with pytest.raises(InvalidRequest, match="api"):
        config.load()
    monkeypatch.setenv("FORGEYARD_API", "{not json")
    with pytest.raises(InvalidRequest, match="api"):
        config.load()


def test_the_databases_password_never_shows_in_a_traceback() -> None:
    assert "sesame" not in repr(
        config.Config(store=config.StoreConfig(url="postgresql://u:sesame@h/d"))
    )


@pytest.mark.parametrize(
    ("agent", "field"),
    [
        ({"devices": {"phone": 0}}, "agent.devices.phone"),
        ({"devices": {f"d{n}": 1 for n in range(65)}}, "agent.devices"),
        ({"gpus": [{"vendor": "acme"}]}, "agent.gpus.0.vendor"),
        ({"gpus": [{"vram": "1Gi"}]}, "agent.gpus.0.vram"),
        ({"gpus": [{}] * 65}, "agent.gpus"),
    ],
)
def test_equipment_that_cannot_be_is_refused_by_its_setting(
    agent: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        config.load(agent=agent)
    assert refused.value.field == field


def test_whatever_holds_secrets_of_this_hosts_processes_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "forgeyard.toml"
    file.write_text(f'data_dir = "{tmp_path}/data"')
    monkeypatch.setenv("FORGEYARD_CONFIG", str(file))
    monkeypatch.setenv("FORGEYARD_TOKEN_FILE", str(tmp_path / "token"))
    places = {tmp_path / "data", file, tmp_path / "token"}
    assert set(config.private_places(config.load())) == places
