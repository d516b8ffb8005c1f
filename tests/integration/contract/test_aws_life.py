"""A machine of a cloud from the wish to its end, and the three names that are never one another."""

import base64
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Home, Infrastructure, ProvisioningActivities
from forgeyard import clock
from forgeyard.errors import ProviderQuotaExceeded, StoreUnavailable
from forgeyard.fleet.lifecycle import Pace
from forgeyard.fleet.ports import Bootstrap, Machine, ProvisionRequest
from forgeyard.model.capacity import MachineState, OperationState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import Offering, Scaling
from forgeyard.model.protocol import Heartbeat, Registered
from forgeyard.store import (
    enrolments,
    fleet_tables,
    fleet_wishes,
    fleets,
    lineage,
    runners,
    tables,
)
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, read
from forgeyard.store.enrolments import COPIED, Alarm
from forgeyard.store.entrance import Entry
from forgeyard.store.identities import Issued
from forgeyard.store.quarantine import shut_out_if_known
from forgeyard.store.shares import Intent
from forgeyard.trust import tokens
from forgeyard.trust.authority import Authority
from forgeyard.trust.invitations import Invitations
from providers.manual import ManualProvider
from tests.builders import PARTITION, RNG, a_fleet_spec, a_registration, some_resources
from tests.fleet.fake import FakeProvider, Knobs
from tests.integration.contract.benches import PIN, AwsBench, LocalBench, now_ms
from tests.leasing import Desk
from tests.trusting import Signs, no_evidence

pytestmark = pytest.mark.integration
AT_ONCE = Pace(look=0)
WIDE = some_resources(cpu=8_000, memory=2**36, disk=2**40, slots=4)
ME = Intent(actor="ann", channel="test", reason="a test")
TOKEN = "fye_01JABCDEFGHJKMNPQRSTVWXYZ0_" + "s" * 43
SECRET = re.compile(r"fye_[0-9A-Z]{26}_[A-Za-z0-9_-]{43}")


class Plant:
    """One fleet of one machine, and what tends it."""

    def __init__(
        self,
        engine: sa.Engine,
        provider: object,
        folder: Path,
        *,
        pace: Pace = AT_ONCE,
        **spec: object,
    ) -> None:
        self.desk = Desk(engine)
        self.desk.change(lineage.leave_mark, rng=RNG)
        authority = Authority(folder / "authority")
        authority.create("ci.example.org", now=clock.now())
        self.invitations = Invitations(authority)
        home = Home(url="https://ci.example:8701", invitations=self.invitations)
        given: Any = {"cloud": Infrastructure(provider=provider, pace=pace)}
        policy = self.desk.policy
        self._tending = ProvisioningActivities(engine, policy, given, home, rng=RNG)
        deciding = FleetActivities(engine, policy, given, Rhythm(), rng=RNG)
        scaling = Scaling(min=1, max=1)
        document = a_fleet_spec(provider="cloud", scaling=scaling, **spec)
        made = self.desk.change(fleets.apply, document, ME, expected_version=None, rng=RNG)
        fleet = contracts.Fleet(fleet_id=made.fleet_id, partition=PARTITION)
        (self.machine,) = deciding.tick_fleet(fleet).untended

    def step(self) -> contracts.Advanced:
        """Take a step, as if it were time for it."""
        table = fleet_tables.capacity_instances
        past = {"looked_at": 0, "next_at": 0}
        self.desk.overwrite(table, self.machine.instance_id, **past)
        with patch.object(activity, "heartbeat", lambda *_details: None):
            return self._tending.advance_instance(self.machine)

    def steps_to(self, state: str) -> Row:
        """Take steps until the machine stands somewhere."""
        for _ in range(100):
            if self.step().state == state:
                return self.row()
            time.sleep(0.05)
        raise AssertionError(f"it is {self.row()['state']}")

    def row(self) -> Row:
        """Read what is known of the machine."""
        (found,) = self.desk.rows(fleet_tables.capacity_instances)
        return found

    def audited(self) -> list[str]:
        """List what was put on record."""
        with read(self.desk.engine) as connection:
            return list(connection.execute(sa.select(tables.audit.c.action)).scalars())

    def came(self, issued: Issued) -> None:
        """Let the machine register under its certificate, and say that it is well."""

        def register(connection: sa.Connection) -> Registered:
            message = a_registration(issued.runner_name, total=WIDE)
            message = replace(message, clock_ms=database_now(connection))
            return runners.register(
                connection,
                message,
                policy=self.desk.policy.lease,
                rng=RNG,
                entry=Entry(runner_id=issued.runner_id, agent_versions=""),
            )

        session = self.desk.change(register)
        assert session.admission is Admission.PENDING, session.admission_reason
        self.desk.change(runners.heartbeat, session.session_id, Heartbeat())

    def brought(self, text: str, key: str) -> object:
        """Bring a token with a key, as the agent API does."""
        token = tokens.read(text)

        def redeem(connection: sa.Connection) -> object:
            answer = enrolments.redeem(
                connection,
                token.enrolment_id,
                self.invitations.mark(token),
                key,
                sign=Signs(),
                prove=no_evidence,
                rng=RNG,
            )
            if isinstance(answer, Alarm) and answer.runner_id is not None:
                shut_out_if_known(
                    connection, answer.runner_id, COPIED, policy=self.desk.policy.lease
                )
            return answer

        return self.desk.change(redeem)


@pytest.mark.requirement("PRI-053", "PRV-003", "PRV-007", "ACC-046", "INV-052")
@pytest.mark.case("FLT-088")
def test_a_cloud_machine_has_three_names_one_token_and_an_end(
    aws: AwsBench, sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    offering = Offering(name="large", machine="m5.large", settings={"ami": aws.ami})
    plant = Plant(sqlite_engine, aws.provider, tmp_path, offerings=(offering,))
    assert plant.row()["operation"] == OperationState.PENDING
    plant.step()
    (there,) = aws.existing()
    row = plant.row()
    assert (row["operation"], row["provider_ref"]) == (OperationState.IN_PROGRESS, there)
    row = plant.steps_to("bootstrapping")
    assert row["operation"] == OperationState.SUCCEEDED
    (call,) = aws.proxy.called("RunInstances")
    (token,) = set(SECRET.findall(base64.b64decode(call["UserData"]).decode()))
    issued = plant.brought(token, "sha256/its-own")
    assert isinstance(issued, Issued)
    plant.steps_to("enrolling")
    plant.came(issued)
    row = plant.steps_to("healthy")
    names = (row["instance_id"], row["provider_ref"], row["runner_id"])
    assert [name.partition("_")[0].partition("-")[0] for name in names] == ["cin", "i", "rnr"]
    assert row["runner_id"] == issued.runner_id
    tags = aws.direct.describe_tags()["Tags"]
    assert row["runner_id"] not in {tag["Value"] for tag in tags}
    assert isinstance(plant.brought(token, "sha256/of-a-thief"), Alarm)
    assert "enrolment.alarm" in plant.audited()
    plant.steps_to("quarantined")
    plant.desk.change(fleet_wishes.release, row["instance_id"], ME)
    plant.steps_to("terminated")
    assert aws.existing() == []
    assert plant.row()["may_exist"] == 0


@pytest.mark.case("FLT-088")
@pytest.mark.requirement("ACC-053")
def test_whatever_the_provider_a_new_machine_is_given_one_token_and_no_other_secret(
    aws: AwsBench, local: LocalBench
) -> None:
    home = Bootstrap(url="https://ci.example:8701", token=TOKEN, pin=PIN)
    aws.provider.provision(aws.request(bootstrap=home))
    (call,) = aws.proxy.called("RunInstances")
    cloud = base64.b64decode(call.pop("UserData")).decode()
    assert SECRET.findall(cloud) == [TOKEN]
    assert TOKEN not in json.dumps(call), "not in tags, which many may read"
    local.provider.provision(local.request(bootstrap=home))
    (folder,) = (it for it in local.folder.iterdir() if it.is_dir())
    files = {it.name: it.read_text() for it in folder.rglob("*") if it.is_file()}
    assert [name for name, text in files.items() if SECRET.search(text)] == ["enrolment-token"]
    assert (folder / "enrolment-token").stat().st_mode & 0o077 == 0
    (process,) = local.processes()
    started = Path(f"/proc/{process.pid}")
    told = (started / "cmdline").read_text() + (started / "environ").read_text()
    assert not SECRET.search(told), "every process of the host may read that"
    by_hand = ManualProvider(Silent()).provision(local.request(bootstrap=home))
    assert not SECRET.search(str(by_hand)), "an operator invites it, and hands that token over"


class Silent:
    """Nobody has said anything of a machine."""

    def confirmed(self, instance_id: str) -> MachineState | None:
        """Say nothing."""
        return None


class Breaking(FakeProvider):
    """A provider whose quota is used up, and beside which the database breaks once."""

    desk: Desk | None = None

    def provision(self, request: ProvisionRequest) -> Machine:
        """Refuse; before that, take away what the refusal would be written into."""
        self.calls["asked"] += 1
        if self.desk is not None and self.calls["asked"] == 1:
            renamed(self.desk, "provider_breakers", "gone")
        raise ProviderQuotaExceeded("VcpuLimitExceeded")


def renamed(desk: Desk, old: str, new: str) -> None:
    """Rename a table."""
    with desk.engine.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))


@pytest.mark.case("FLT-080")
def test_a_refusal_that_could_not_be_written_down_is_met_again_as_what_it_is(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    provider = Breaking(now_ms, knobs=Knobs())
    plant = Plant(sqlite_engine, provider, tmp_path, pace=Pace(look=0, visibility=0))
    provider.desk = plant.desk
    with pytest.raises(StoreUnavailable):
        plant.step()
    renamed(plant.desk, "gone", "provider_breakers")
    row = plant.row()
    assert (row["state"], row["operation"]) == ("provisioning", OperationState.UNKNOWN)
    plant.steps_to("terminated")
    assert provider.calls["asked"] == 2, "it was looked for, and asked for again"
    (breaker,) = plant.desk.rows(fleet_tables.provider_breakers)
    assert breaker["code"] == ProviderQuotaExceeded("x").code
    assert "VcpuLimitExceeded" in plant.row()["failure"]
