"""Fleets with images and machines, brought by hand to where a test begins."""

import hashlib

import sqlalchemy as sa

from forgeyard.fleet.view import Launch
from forgeyard.model.capacity import CapacityInstanceState, ScaleReason
from forgeyard.model.fleet import FleetSpec
from forgeyard.model.image import Provenance, RunnerImage
from forgeyard.store import fleet_tables, fleets, images, machines
from forgeyard.store.engine import database_now
from forgeyard.store.shares import Intent
from tests.builders import RNG, a_fleet_spec
from tests.leasing import Desk

ANN = Intent(actor="ann", channel="cli", reason="the weekly build")
MADE = Provenance(builder="ci", source="3c9e01", sbom="sha256:77", signature="oci://sig")


def digest_of(name: str) -> str:
    """Name an image."""
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


OLD, NEW = digest_of("old"), digest_of("new")


def an_image(desk: Desk, digest: str, **changed: object) -> str:
    """Register an image of which everything is known."""
    image = RunnerImage(**{"digest": digest, "provenance": MADE, **changed})
    return desk.change(images.add, image, ANN).image.digest


def a_fleet_of(desk: Desk, image: str, **changed: object) -> FleetSpec:
    """Make a fleet that boots an image; return its document as it is kept."""
    base = a_fleet_spec(**changed)
    capacity = {name: getattr(base.capacity, name) for name in base.capacity.__slots__}
    spec = a_fleet_spec(
        **{**changed, "capacity": type(base.capacity)(**{**capacity, "image": image})}
    )
    return desk.change(fleets.apply, spec, ANN, expected_version=None, rng=RNG).spec


def a_machine(desk: Desk, fleet: str = "builders", *, image: str = "", **values: object) -> str:
    """Want one machine of a fleet and put it where the test wants it."""

    def want(connection: sa.Connection) -> str:
        row = fleets.find(connection, fleet)
        spec = fleets.view(row).spec
        launch = Launch(offering=spec.offerings[0].name, reason=ScaleReason.MANUAL, image=image)
        now = database_now(connection)
        (made,) = machines.intend(connection, row, spec, [launch], now=now, rng=RNG)
        return made

    made = desk.change(want)
    if values:
        desk.overwrite(fleet_tables.capacity_instances, made, **values)
    return made


def healthy(desk: Desk, fleet: str = "builders", *, image: str = "") -> tuple[str, str]:
    """Bring a machine up with its runner; return both, the machine first, then its session."""
    made = a_machine(desk, fleet, image=image)
    name = desk.row(fleet_tables.capacity_instances, made)["runner_name"]
    registered = desk.register(name)
    state = CapacityInstanceState.HEALTHY.value
    changed = {"state": state, "runner_id": registered.runner_id, "running_at": 1, "calls": 1}
    desk.overwrite(fleet_tables.capacity_instances, made, healthy_at=1, **changed)
    return made, registered.session_id
