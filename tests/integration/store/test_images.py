"""Images of machines: registered, named, demanded by fleets, struck out."""

import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.lifecycle import Pace
from forgeyard.fleet.plan import decide
from forgeyard.fleet.ports import TAG_INSTALLATION, Listing, Machine
from forgeyard.model.capability import TrustClass
from forgeyard.model.capacity import CapacityInstanceState, MachineState
from forgeyard.model.enrolment import Grant
from forgeyard.model.fleet import CapacityClass, FleetSpec, Scaling
from forgeyard.model.image import ImageDemand, ImageSeverity, ImageState, Provenance, RunnerImage
from forgeyard.model.job import CacheSpec
from forgeyard.scheduler.demand import unmet
from forgeyard.store import (
    blobs,
    caches,
    changes,
    enrolments,
    fleet_decisions,
    fleet_reading,
    fleet_tables,
    fleets,
    image_tables,
    images,
    machine_life,
    machines,
    sightings,
    tables,
)
from forgeyard.store.changes import LEASE
from forgeyard.store.engine import read
from forgeyard.store.enrolments import Wanted
from tests.builders import PARTITION, RNG, a_fleet_spec, a_job_spec, some_resources
from tests.integration.store.grounds import (
    ANN,
    MADE,
    NEW,
    OLD,
    a_fleet_of,
    a_machine,
    an_image,
    digest_of,
    healthy,
)
from tests.leasing import POLICY, Desk

pytestmark = pytest.mark.integration
S = CapacityInstanceState
INSTANCES = fleet_tables.capacity_instances


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def apply(desk: Desk, spec: FleetSpec) -> FleetSpec:
    return desk.change(fleets.apply, spec, ANN, expected_version=None, rng=RNG).spec


def with_image(image: str, **changed: object) -> FleetSpec:
    resources = some_resources(cpu=4_000, memory=2**33, disk=2**34, slots=4)
    trust = changed.pop("trust", TrustClass.UNTRUSTED_GENERAL)
    capacity = CapacityClass(resources=resources, image=image, trust=trust)
    return a_fleet_spec(capacity=capacity, **changed)


def compromise(desk: Desk, severity: ImageSeverity, since: int = 0) -> images.Struck:
    return desk.change(images.compromise, OLD, severity, ANN, since=since)


def step(desk: Desk, instance_id: str) -> str:
    """Take a machine as far as it goes without asking its provider; tell its state."""
    desk.change(machine_life.advance, instance_id, Pace(), POLICY.lease)
    return str(desk.row(INSTANCES, instance_id)["state"])


@pytest.mark.requirement("IMG-001", "IMG-002", "IMG-005", "IMG-014")
@pytest.mark.requirement("ACC-048", "INV-057")
def test_an_image_is_registered_once_by_its_digest_and_never_changes(desk: Desk) -> None:
    places = {"aws/eu-1": "ami-1"}
    an_image(desk, OLD, references=places)
    an_image(desk, OLD, references={"aws/us-1": "ami-2"})
    with read(desk.engine) as connection:
        found = images.show(connection, OLD)
    assert found.image.references == {"aws/eu-1": "ami-1", "aws/us-1": "ami-2"}
    assert (found.image.provenance, found.state) == (MADE, ImageState.TRUSTED)
    assert found.image.reference("aws", "cheap", "us-1") == "ami-2"
    assert found.image.reference("azure", "eu-1") == ""
    with pytest.raises(Conflict, match="is called ami-1"):
        an_image(desk, OLD, references={"aws/eu-1": "ami-9"})
    with pytest.raises(Conflict, match="made otherwise"):
        an_image(desk, OLD, provenance=Provenance(builder="x", source="y", sbom="z", signature="w"))
    with pytest.raises(InvalidRequest, match="by its digest"):
        an_image(desk, "linux")
    assert len(desk.audited("image.add")) == 2


@pytest.mark.requirement("IMG-013", "IMG-015", "IMG-016")
@pytest.mark.requirement("ACC-048")
def test_a_fleet_keeps_the_digest_that_an_alias_had_when_it_was_applied(desk: Desk) -> None:
    an_image(desk, OLD)
    an_image(desk, NEW)
    desk.change(images.name, "stable", OLD, ANN)
    assert apply(desk, with_image("stable")).capacity.image == OLD
    desk.change(images.name, "stable", NEW, ANN)
    with read(desk.engine) as connection:
        assert fleets.view(fleets.find(connection, "builders")).spec.capacity.image == OLD
    assert apply(desk, with_image("stable")).capacity.image == NEW
    with pytest.raises(NotFound, match="no image edge"):
        apply(desk, with_image("edge"))
    with pytest.raises(InvalidRequest, match="no alias"):
        desk.change(images.name, digest_of("x"), NEW, ANN)


@pytest.mark.requirement("IMG-005", "IMG-006")
@pytest.mark.requirement("INV-057", "GAT-016")
def test_who_demands_it_takes_only_images_whose_making_is_on_record(desk: Desk) -> None:
    with pytest.raises(Conflict, match="is not registered"):
        apply(desk, with_image(OLD))
    assert apply(desk, with_image(OLD, images=ImageDemand.ANY)).capacity.image == OLD
    an_image(desk, NEW, provenance=Provenance(builder="somebody"))
    assert apply(desk, with_image(NEW)).capacity.image == NEW
    other = {"name": "vault", "protected": True}
    for demanding in (
        {"images": ImageDemand.ATTESTED},
        {"trust": TrustClass.SIGNING_RESTRICTED, "images": ImageDemand.ANY},
    ):
        with pytest.raises(Conflict, match="no complete record"):
            apply(desk, with_image(NEW, **other, **demanding))
    made = an_image(desk, digest_of("made"))
    trusted = with_image(made, **other, trust=TrustClass.SIGNING_RESTRICTED)
    assert apply(desk, trusted).capacity.image == made


@pytest.mark.requirement("IMG-018", "IMG-019")
def test_no_fleet_begins_with_an_image_that_is_not_trusted_and_one_that_has_it_goes_on(
    desk: Desk,
) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD)
    desk.change(images.retire, OLD, ANN)
    assert apply(desk, with_image(OLD, scaling=Scaling(max=3))).scaling.max == 3
    with pytest.raises(Conflict, match="is retired"):
        apply(desk, with_image(OLD, name="another"))
    compromise(desk, ImageSeverity.MODERATE)
    with pytest.raises(Conflict, match="is compromised"):
        apply(desk, with_image(OLD, name="another"))
    desk.change(images.trust, OLD, ANN)
    apply(desk, with_image(OLD, name="another"))
    wanted = ["image.retire", "image.compromise", "image.trust"]
    assert [len(desk.audited(action)) for action in wanted] == [1, 1, 1]


def tick(desk: Desk) -> contracts.FleetTick:
    with read(desk.engine) as connection:
        fleet_id = fleets.find(connection, "builders")["fleet_id"]
    fleet = contracts.Fleet(fleet_id=fleet_id, partition=PARTITION)
    return FleetActivities(desk.engine, POLICY, {}, Rhythm(), rng=RNG).tick_fleet(fleet)


@pytest.mark.requirement("IMG-019", "FOP-003", "FOP-004")
@pytest.mark.requirement("TST-022", "ACC-062", "INV-073")
def test_nothing_is_made_of_a_compromised_image_and_what_was_to_come_does_not(desk: Desk) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD, scaling=Scaling(min=2, max=4))
    assert tick(desk).launched == 2
    compromise(desk, ImageSeverity.MODERATE)
    first, second = (row["instance_id"] for row in desk.rows(INSTANCES))
    desk.overwrite(INSTANCES, second, state="bootstrapping", calls=1, machine="running")
    assert (step(desk, first), step(desk, second)) == ("terminated", "terminating")
    assert tick(desk).launched == 0
    breakers = desk.rows(fleet_tables.provider_breakers)
    assert all(row["failures"] == 0 for row in breakers), "its offering has done nothing wrong"


def test_a_decision_from_before_the_alarm_makes_nothing_after_it(desk: Desk) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD, scaling=Scaling(min=2, max=4))
    with read(desk.engine) as connection:
        found = fleet_reading.read(connection, PARTITION, POLICY)
    (view,) = found.fleets
    demand = unmet(found.snapshot, found.policy)
    decision = decide(view, {}, demand=demand, now=found.now)
    assert len(decision.launch) == 2
    compromise(desk, ImageSeverity.MODERATE)
    done = desk.change(
        fleet_decisions.commit,
        view,
        decision,
        partition=PARTITION,
        demand=demand,
        allocation=allocate(demand, found.fleets, found.now),
        version=found.allocation_version,
        rng=RNG,
    )
    assert (done.launched, desk.rows(INSTANCES)) == ((), [])


@pytest.mark.requirement("IMG-020")
@pytest.mark.requirement("ACC-062", "INV-073")
def test_machines_of_a_moderately_bad_image_finish_their_work_and_go(desk: Desk) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD)
    made, _ = healthy(desk)
    desk.submit(a_job_spec())
    assert desk.cycle().granted == 1
    assert compromise(desk, ImageSeverity.MODERATE).machines == 1
    assert step(desk, made) == "healthy"
    tick(desk)
    row = desk.row(INSTANCES, made)
    assert (row["state"], row["drain_reason"]) == ("draining", "image")
    assert len(desk.leases(state="offered")) == 1


@pytest.mark.requirement("IMG-020", "FOP-003")
@pytest.mark.requirement("PHA-024", "INV-073")
def test_a_critical_image_costs_its_machines_their_work_and_their_certificates(desk: Desk) -> None:
    """S10: what is struck out proves nothing any more."""
    an_image(desk, OLD)
    a_fleet_of(desk, OLD)
    made, _ = healthy(desk)
    lease_of(desk)
    compromise(desk, ImageSeverity.MODERATE)
    tick(desk)
    compromise(desk, ImageSeverity.CRITICAL)
    assert desk.row(INSTANCES, made)["tended_until"] == 0, "it is looked after at once"
    assert step(desk, made) == "quarantined"
    (runner,) = desk.rows(tables.runners)
    assert (runner["admission"], runner["session_id"]) == ("quarantined", None)
    assert [row["state"] for row in desk.rows(tables.leases)] == ["revoked"]
    assert len(desk.audited("runner.revoke")) == 1
    assert compromise(desk, ImageSeverity.MODERATE).machines == 1
    assert desk.rows(image_tables.runner_images)[0]["severity"] == "critical"


def lease_of(desk: Desk) -> object:
    desk.submit(a_job_spec(caches=(CacheSpec(name="pip", path=".c", key=("a.lock",)),)))
    assert desk.cycle().granted == 1
    (lease,) = desk.leases(state="offered")
    desk.accept(lease)
    return desk.change(changes.find, LEASE, lease.lease_id)


@pytest.mark.requirement("FOP-004")
def test_caches_that_runners_of_a_compromised_image_filled_are_not_handed_out(desk: Desk) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD)
    healthy(desk)
    lease = lease_of(desk)
    early, late = digest_of("early"), digest_of("late")
    for name in (early, late):
        desk.change(blobs.record, name, 3)
        desk.change(caches.record, lease, "pip", name, name, 3)
    desk.change(
        lambda connection: connection.execute(
            sa.update(tables.caches)
            .where(tables.caches.c.cache_key == early)
            .values(created_at=1_000)
        )
    )
    assert desk.change(caches.find, lease, "pip", late) is not None
    assert compromise(desk, ImageSeverity.MODERATE, since=2_000).runners == 1
    assert desk.change(caches.find, lease, "pip", late) is None
    assert desk.change(caches.find, lease, "pip", early) is not None
    desk.change(caches.record, lease, "pip", late, late, 3)
    assert desk.change(caches.find, lease, "pip", late) is None, "nor what it saves afterwards"
    assert compromise(desk, ImageSeverity.MODERATE).runners == 1
    assert desk.change(caches.find, lease, "pip", early) is None


def test_tokens_of_machines_that_were_to_come_are_worth_nothing(desk: Desk) -> None:
    an_image(desk, OLD)
    a_fleet_of(desk, OLD)
    made = a_machine(desk, state="bootstrapping", calls=1)
    binding = machines.binding_of(desk.row(INSTANCES, made))
    wanted = Wanted(binding=binding, runner_name="builders-1", grant=Grant())
    desk.change(enrolments.mint, wanted, ANN, mark=lambda *_a: "mark", rng=RNG)
    assert compromise(desk, ImageSeverity.MODERATE).tokens == 1
    (enrolment,) = desk.rows(tables.enrolments)
    assert enrolment["cancelled_at"] is not None


@pytest.mark.requirement("IMG-010")
@pytest.mark.requirement("TST-021", "GAT-016")
def test_a_machine_that_its_provider_gave_another_image_has_drifted(desk: Desk) -> None:
    an_image(desk, OLD, references={"local/eu": "ami-old"})
    a_fleet_of(desk, OLD, scaling=Scaling(min=1))
    made, _ = healthy(desk)
    desk.overwrite(INSTANCES, made, provider_ref="i-1")

    def seen_with(image: str) -> str:
        tags = {TAG_INSTALLATION: "here"}
        one = Machine(ref="i-1", state=MachineState.RUNNING, tags=tags, image=image, region="eu")
        listing = Listing(machines=(one,), complete=True)
        desk.change(sightings.observe, "local", "here", listing, now=5)
        with read(desk.engine) as connection:
            (view,) = fleet_reading.read(connection, PARTITION, POLICY).fleets
        return view.instances[0].image

    assert [seen_with(name) for name in ("ami-old", OLD, "")] == [OLD, OLD, OLD]
    assert seen_with("ami-other") == "ami-other"
    assert seen_with("ami-old") == OLD
    assert (tick(desk).launched, tick(desk).drained) == (0, 0)
    seen_with("ami-other")
    assert tick(desk).launched == 1, "another one comes for it"
    drifted, other = desk.rows(INSTANCES)
    assert (drifted["state"], drifted["drain_reason"], other["image"]) == ("draining", "image", OLD)


def test_images_are_listed_with_their_names_and_machines(desk: Desk) -> None:
    an_image(desk, OLD)
    desk.change(images.name, "stable", OLD, ANN)
    a_fleet_of(desk, OLD)
    a_machine(desk)
    with read(desk.engine) as connection:
        (found,) = images.list_all(connection)
        assert images.show(connection, "stable") == found
        with pytest.raises(NotFound):
            images.show(connection, NEW)
    assert (found.aliases, found.machines, found.image) == (
        ("stable",),
        1,
        RunnerImage(digest=OLD, provenance=MADE),
    )
