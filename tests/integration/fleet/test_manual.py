"""A machine that people set up and take away: what they say is all that is known of it."""

from unittest.mock import patch

import pytest
import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Home, Infrastructure, ProvisioningActivities
from forgeyard.model.fleet import Scaling
from forgeyard.store import fleet_tables, fleet_wishes, fleets, lineage
from forgeyard.store.shares import Intent
from providers.manual import ManualProvider
from tests.builders import PARTITION, RNG, a_fleet_spec, some_resources
from tests.leasing import Desk
from worker.infrastructure import StoreConfirmations

pytestmark = pytest.mark.integration
ME = Intent(actor="ann", channel="test", reason="it went back to the shop")
WIDE = some_resources(cpu=8_000, memory=2**36, disk=2**40, slots=4)


@pytest.mark.requirement("PRV-015", "FOP-020", "PRI-055")
def test_a_machine_is_there_when_its_runner_is_and_gone_when_an_operator_says_so(
    engine: sa.Engine,
) -> None:
    desk = Desk(engine)
    desk.change(lineage.leave_mark, rng=RNG)
    hands = {"manual": Infrastructure(provider=ManualProvider(StoreConfirmations(engine=engine)))}
    deciding = FleetActivities(engine, desk.policy, hands, Rhythm(), rng=RNG)
    tending = ProvisioningActivities(engine, desk.policy, hands, Home(url=""), rng=RNG)
    spec = a_fleet_spec("hall", provider="manual", scaling=Scaling(min=1, max=1))
    fleet = desk.change(fleets.apply, spec, ME, expected_version=None, rng=RNG)
    (machine,) = deciding.tick_fleet(
        contracts.Fleet(fleet_id=fleet.fleet_id, partition=PARTITION)
    ).untended

    def look() -> contracts.Advanced:
        table = fleet_tables.capacity_instances
        desk.overwrite(table, machine.instance_id, looked_at=0)
        with patch.object(activity, "heartbeat", lambda *_details: None):
            return tending.advance_instance(machine)

    waiting = look()
    assert waiting.state == "provisioning"
    assert f"forgeyard runner invite {machine.runner_name}" in waiting.line
    desk.register(machine.runner_name, total=WIDE)
    assert look().state == "healthy"
    desk.change(fleet_wishes.drain_machine, machine.instance_id, ME)
    assert look().state == "terminating"
    assert look().state == "terminating", "nobody has said that it is gone"
    desk.change(fleet_wishes.release, machine.instance_id, ME)
    assert look().ended
