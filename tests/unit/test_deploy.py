"""The files under deploy/ name only settings, commands and files that exist."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from forgeyard.agent.contact import GAVE_UP
from forgeyard.config import Config

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_production_settings_are_ones_the_product_knows() -> None:
    settings = tomllib.loads((DEPLOY / "forgeyard.toml").read_text())
    assert Config.model_validate(settings).temporal.address == "temporal:7233"


def test_every_service_of_ours_runs_a_command_of_ours() -> None:
    services = YAML(typ="safe").load(DEPLOY / "compose.yaml")["services"]
    ours = [service["command"] for service in services.values() if "command" in service]
    assert ours == [
        ["forgeyard", "database", "upgrade"],
        ["forgeyard", "worker"],
        ["forgeyard", "api"],
    ]


def test_every_variable_of_ours_names_a_setting() -> None:
    text = "".join(path.read_text() for path in DEPLOY.rglob("*") if path.is_file())
    names = set(re.findall(r"FORGEYARD_([A-Z]+__[A-Z_]+)", text))
    assert names >= {"STORE__URL"}
    for name in names - {"GROUP__KEY"}:
        group, key = name.lower().split("__")
        annotation = Config.model_fields[group].annotation
        assert annotation is not None
        assert key in annotation.model_fields


def test_a_unit_sets_no_variable_that_its_own_program_would_refuse() -> None:
    for unit in DEPLOY.rglob("*.service"):
        for name in re.findall(r"FORGEYARD_[A-Z_]+", unit.read_text()):
            assert "__" in name, f"{unit.name}: {name}"


@pytest.mark.case("FLT-027")
@pytest.mark.parametrize(("status", "goes_off"), [(GAVE_UP, True), (0, False), (7, False)])
def test_the_host_of_an_agent_that_gave_up_goes_off_and_no_other(
    tmp_path: Path, status: int, goes_off: bool
) -> None:
    unit = (DEPLOY / "systemd" / "forgeyard-agent.service").read_text()
    assert f"\nRestartPreventExitStatus={GAVE_UP}\n" in unit
    found = re.search(r"^ExecStopPost=\+/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    assert found is not None
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    systemctl.chmod(0o700)
    script = found[1].replace("$$", "$")
    environment = {"PATH": str(tmp_path), "EXIT_STATUS": str(status)}
    subprocess.run(("/bin/sh", "-c", script), env=environment, check=True)
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == "--no-block poweroff\n" * goes_off
