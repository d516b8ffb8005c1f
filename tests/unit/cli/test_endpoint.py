"""Where the API is and which token goes there: options, environment, data directory."""

import json
from pathlib import Path

import pytest

from forgeyard.cli.endpoint import checked_url, read_token, resolve, resolve_agent
from forgeyard.cli.links import attempt_link, fleet_link, instance_link, temporal_ui
from forgeyard.config import ApiConfig, ClientConfig, Config, TemporalConfig
from forgeyard.errors import InvalidRequest, NotFound, Unauthenticated

NOBODY = ClientConfig(url="", token="", token_file="")
ELSEWHERE = "http://ci.example:8700"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A data directory with a token and nothing running."""
    (tmp_path / "token").write_text("local-secret\n")
    (tmp_path / "token").chmod(0o600)
    return Config(data_dir=tmp_path)


def run_a_system(config: Config, **changed: str) -> None:
    """Write what `up` writes."""
    endpoints = {
        "api_url": "http://127.0.0.1:4711",
        "agent_url": "http://127.0.0.1:4712",
        "ui_url": "http://127.0.0.1:4713",
        "token_file": str(config.data_dir / "token"),
        "pid": 1,
    }
    (config.data_dir / "endpoints.json").write_text(json.dumps(endpoints | changed))


def test_nothing_said_means_the_configured_port_and_the_local_token(config: Config) -> None:
    end = resolve(config, NOBODY, url=None, token_file=None)
    assert (end.urls, end.token) == (("http://127.0.0.1:8700",), "local-secret")


def test_a_running_system_is_found(config: Config) -> None:
    run_a_system(config)
    assert resolve(config, NOBODY, url=None, token_file=None).urls == ("http://127.0.0.1:4711",)
    end = resolve_agent(config, NOBODY, url=None, token_file=None)
    assert (end.urls, end.token) == (("http://127.0.0.1:4712",), "local-secret")


def test_an_option_beats_the_environment_and_the_environment_the_directory(
    config: Config, tmp_path: Path
) -> None:
    run_a_system(config)
    client = ClientConfig(url=ELSEWHERE, token="from-environment", token_file="")
    assert resolve(config, client, url=None, token_file=None).urls == (ELSEWHERE,)
    other = tmp_path / "other"
    other.write_text("from-file")
    end = resolve(config, client, url="http://b.example", token_file=other)
    assert (end.urls, end.token) == (("http://b.example",), "from-file")


def test_a_token_file_may_be_named_by_the_environment(config: Config) -> None:
    client = ClientConfig(url=ELSEWHERE, token="", token_file=str(config.token_path()))
    assert resolve(config, client, url=None, token_file=None).token == "local-secret"


def test_the_local_token_is_never_sent_to_another_host(config: Config) -> None:
    with pytest.raises(Unauthenticated) as caught:
        resolve(config, NOBODY, url=ELSEWHERE, token_file=None)
    assert caught.value.exit_code == 5
    with pytest.raises(Unauthenticated):
        resolve_agent(config, NOBODY, url="http://ci.example:8701", token_file=None)


def test_a_listener_on_every_address_is_reached_over_loopback(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    config = Config(data_dir=tmp_path, api=ApiConfig(host="0.0.0.0", port=9))
    assert resolve(config, NOBODY, url=None, token_file=None).urls == ("http://127.0.0.1:9",)
    config = Config(data_dir=tmp_path, api=ApiConfig(host="::1", port=9))
    assert resolve(config, NOBODY, url=None, token_file=None).urls == ("http://[::1]:9",)


@pytest.mark.parametrize("text", ["", "not json", "[]", "null", '{"api_url": 3}'])
def test_a_damaged_record_of_a_system_counts_as_none(config: Config, text: str) -> None:
    (config.data_dir / "endpoints.json").write_text(text)
    assert resolve(config, NOBODY, url=None, token_file=None).urls == ("http://127.0.0.1:8700",)


@pytest.mark.parametrize(
    "url", ["", "ci:8700", "ftp://ci", "http://", "http://[", "x" * 9, "http:// a"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="URL"):
        checked_url(url)


@pytest.mark.parametrize("content", [b"", b"\n", b"  \n", b"a\x00b", "ü".encode(), b"\xff"])
def test_a_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest):
        read_token(path)


def test_a_token_file_that_is_missing_or_a_directory_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_token(tmp_path / "absent")
    with pytest.raises(InvalidRequest, match="directory"):
        read_token(tmp_path)


def test_links_lead_to_the_web_ui_of_the_system_that_was_asked(config: Config) -> None:
    assert temporal_ui(config, None) is None, "nobody has said where it is"
    run_a_system(config)
    ui = temporal_ui(config, None)
    assert ui == "http://127.0.0.1:4713/namespaces/default"
    assert attempt_link(ui, "job_1", 2).endswith("/default/workflows/attempt%2Fjob_1%2F2")
    assert fleet_link(ui, "flt_1").endswith("/default/workflows/fleet%2Fflt_1")
    assert instance_link(ui, "cin_1").endswith("/default/workflows/instance%2Fcin_1")
    assert temporal_ui(config, ELSEWHERE) is None, "that system has a web UI of its own"


def test_a_configured_web_ui_is_used_for_any_system(config: Config) -> None:
    ui = TemporalConfig(ui_url="http://ui.example/", namespace="prod")
    found = temporal_ui(Config(data_dir=config.data_dir, temporal=ui), ELSEWHERE)
    assert found == "http://ui.example/namespaces/prod"


def test_a_data_directory_that_came_with_sources_is_not_believed(config: Config) -> None:
    run_a_system(config, api_url="http://evil.example", ui_url="http://evil.example")
    config.token_path().chmod(0o644)  # as any checkout writes its files
    client = ClientConfig(url="", token="from-environment", token_file="")
    assert resolve(config, client, url=None, token_file=None).urls == ("http://127.0.0.1:8700",)
    assert temporal_ui(config, None) is None
    config.token_path().unlink()
    assert resolve(config, client, url=None, token_file=None).urls == ("http://127.0.0.1:8700",)


def test_a_record_of_a_system_cannot_name_a_file_to_send(config: Config, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("private-key\n")
    run_a_system(config, token_file=str(tmp_path / "id_rsa"))
    assert resolve(config, NOBODY, url=None, token_file=None).token == "local-secret"


@pytest.mark.parametrize("token", ["a\nb", "sesäme", " \t", "a\x00b"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_repeated(
    config: Config, token: str
) -> None:
    client = ClientConfig(url=ELSEWHERE, token=token, token_file="")
    with pytest.raises(InvalidRequest) as caught:
        resolve(config, client, url=None, token_file=None)
    assert caught.value.field == "FORGEYARD_TOKEN"
    assert token not in f"{caught.value.message}{caught.value.value}"
    assert "sesame" not in repr(ClientConfig(token="sesame"))


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_url("http://me:sesame@ci.example:8700")
    assert "sesame" not in f"{caught.value.message}{caught.value.value}"


def test_several_addresses_are_taken_in_order_each_once(tmp_path: Path) -> None:
    client = ClientConfig(url="http://a:1, http://b:2/,http://a:1", token="sesame")
    end = resolve(Config(data_dir=tmp_path), client, url=None, token_file=None)
    assert end.urls == ("http://a:1", "http://b:2")


def test_one_bad_address_among_several_is_named(tmp_path: Path) -> None:
    client = ClientConfig(url="http://a:1,,http://b:2", token="sesame")
    with pytest.raises(InvalidRequest):
        resolve(Config(data_dir=tmp_path), client, url=None, token_file=None)
    many = ",".join(f"http://a:{port}" for port in range(1, 18))
    with pytest.raises(InvalidRequest, match="17 URLs"):
        resolve(Config(data_dir=tmp_path), client, url=many, token_file=None)


def test_the_local_token_goes_nowhere_if_one_of_the_addresses_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("local-secret\n")
    both = f"http://127.0.0.1:8700,{ELSEWHERE}"
    with pytest.raises(Unauthenticated):
        resolve(Config(data_dir=tmp_path), NOBODY, url=both, token_file=None)
