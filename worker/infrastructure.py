"""The providers that the configuration names, each put together from its adapter.

The SDK of a cloud is loaded only where a provider of its kind is configured.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from activities.provisioning import Home, Infrastructure
from forgeyard import clock, config
from forgeyard.config import Config
from forgeyard.errors import StoreUnavailable
from forgeyard.fleet.lifecycle import Pace
from forgeyard.fleet.ports import FleetProvider
from forgeyard.machine_settings import ProviderConfig
from forgeyard.model.capacity import MachineState
from forgeyard.store import lineage, machines
from forgeyard.store.engine import read
from forgeyard.trust.authority import Authority
from forgeyard.trust.invitations import Invitations
from providers.aws import AwsProvider
from providers.aws_sdk import AwsSettings
from providers.local import LocalProvider, Starter
from providers.manual import ManualProvider

NEAR: Final = Pace(look=1_000, visibility=2_000, ask_again=10_000)
"""For what is on this host."""
FAR: Final = Pace()
PACES: Final = {"local": NEAR, "manual": FAR}


def infrastructures(settings: Config, engine: sa.Engine) -> Mapping[str, Infrastructure]:
    """Put every provider of the configuration together.

    Raises:
        InvalidRequest: the SDK of one is not installed, or its settings do not fit its kind.
    """
    return {
        name: Infrastructure(provider=_provider(name, given, settings, engine), pace=_pace(given))
        for name, given in settings.fleets.providers.items()
    }


def home(settings: Config) -> Home:
    """Say where new machines go, and whether each needs a token of its own."""
    if settings.api.agent_identity == "token":
        return Home(url=settings.fleet_url())
    return Home(
        url=settings.fleet_url(), invitations=Invitations(Authority(settings.authority_dir()))
    )


def _pace(given: ProviderConfig) -> Pace:
    usual = PACES.get(given.kind, FAR)
    look, visibility = int(given.look_s * 1000), int(given.visibility_s * 1000)
    return Pace(
        look=look or usual.look,
        visibility=visibility or usual.visibility,
        ask_again=usual.ask_again,
    )


def _provider(
    name: str, given: ProviderConfig, settings: Config, engine: sa.Engine
) -> FleetProvider:
    if given.kind == "local":
        root = settings.data_dir.resolve() / "fleet" / name
        return LocalProvider(root, _starter(settings), now=_now)
    if given.kind == "manual":
        return ManualProvider(StoreConfirmations(engine=engine))
    return AwsProvider(
        AwsSettings(
            regions=given.regions,
            queue_url=given.queue_url,
            profile=given.profile,
            endpoint_url=given.endpoint_url,
            installation=_installation(engine),
        )
    )


def _installation(engine: sa.Engine) -> str:
    """Tell the id of our store, which marks what is ours; empty while nobody can say."""
    try:
        with read(engine) as connection:
            return lineage.current(connection).store_id
    except StoreUnavailable:
        return ""


def _starter(settings: Config) -> Starter:
    """Start agents of fleets as `forgeyard up` starts its own."""
    token = settings.api.agent_identity == "token"
    return Starter(
        command=(sys.executable, "-m", "forgeyard.cli.main", "agent"),
        environment=config.child_environment(
            FORGEYARD_DATA_DIR=str(settings.data_dir.resolve()),
            FORGEYARD_AGENT=settings.agent.model_dump_json(),
        ),
        token_file=Path(settings.token_path()).resolve() if token else None,
    )


def _now() -> int:
    return int(clock.now().timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfirmations:
    """What the store has heard of machines that only people can see."""

    engine: sa.Engine

    def confirmed(self, instance_id: str) -> MachineState | None:
        """Tell whether a machine has come up, or an operator has said that it is gone."""
        with read(self.engine) as connection:
            return machines.heard_of(connection, instance_id)
