"""What every provider promises, whatever it stands before."""

from dataclasses import replace

import pytest

from forgeyard.errors import Ambiguous, InvalidSpec, NotFound, OutOfCapacity, Throttled
from forgeyard.fleet.ports import (
    TAG_FLEET,
    TAG_IMAGE,
    TAG_INSTALLATION,
    TAG_INSTANCE,
    TAG_OPERATION,
    TAG_SCOPE,
)
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import CapacityClass, Offering
from tests.fleet.requests import OURS, a_request, sought
from tests.integration.contract.benches import GONE, Bench, Faulty, running, state_of

pytestmark = pytest.mark.integration


@pytest.mark.requirement("PRV-001", "PRV-006")
@pytest.mark.requirement("PHA-015")
@pytest.mark.requirement("FRC-008", "FRC-009", "FRC-010", "FRC-011")
def test_a_machine_that_was_made_is_seen_running_in_time_with_its_tags(bench: Bench) -> None:
    owner = replace(bench.request().owner, scope="prj_1")
    request = bench.request(owner=owner, capacity=CapacityClass(image="sha256:9f"))
    made = running(bench, request)
    found = bench.provider.inspect(sought(request, made.ref))
    assert found is not None
    assert found.ref == made.ref
    tags = {
        TAG_INSTALLATION: OURS,
        TAG_FLEET: "flt_1",
        TAG_INSTANCE: "cin_1",
        TAG_OPERATION: request.operation_key,
        TAG_IMAGE: "sha256:9f",
        TAG_SCOPE: "prj_1",
    }
    assert tags.items() <= found.tags.items()
    assert found.launched_at is not None
    assert len(bench.existing()) == 1


@pytest.mark.requirement("PRV-005")
@pytest.mark.requirement("TST-016")
def test_the_same_request_twice_is_one_machine(bench: Bench) -> None:
    request = bench.request()
    made = bench.provider.provision(request)
    assert bench.provider.provision(request).ref == made.ref
    running(bench, request)
    assert bench.provider.provision(request).ref == made.ref
    assert len(bench.existing()) == 1


@pytest.mark.requirement("PRV-005")
def test_the_key_of_one_request_serves_no_other(bench: Bench) -> None:
    request = bench.request()
    bench.provider.provision(request)
    other = replace(request, offering=replace(request.offering, machine="m9.huge"))
    with pytest.raises(InvalidSpec):
        bench.provider.provision(other)
    assert len(bench.existing()) == 1


def test_a_listing_tells_an_installation_of_its_own_machines_and_of_no_others(
    bench: Bench,
) -> None:
    bench.foreign()
    request = bench.request()
    made = running(bench, request)
    bench.until(lambda: len(bench.provider.list_machines(OURS).machines) == 1)
    listing = bench.provider.list_machines(OURS)
    assert listing.complete
    assert [machine.ref for machine in listing.machines] == [made.ref]
    assert listing.machines[0].tags[TAG_INSTANCE] == "cin_1"


def test_nothing_is_seen_where_nothing_was_made(bench: Bench) -> None:
    assert bench.provider.inspect(sought(bench.request())) is None
    assert bench.provider.list_machines(OURS).machines == ()
    bench.provider.terminate(sought(bench.request()))
    assert bench.existing() == []


def test_a_machine_ends_once_however_often_that_is_asked(bench: Bench) -> None:
    request = bench.request()
    made = running(bench, request)
    bench.provider.terminate(sought(request, made.ref))
    bench.provider.terminate(sought(request, made.ref))
    bench.until(lambda: state_of(bench, request) in GONE)
    bench.provider.terminate(sought(request, made.ref))
    assert bench.existing() == []


@pytest.mark.case("FLT-003")
def test_a_key_whose_machine_is_gone_makes_no_other(bench: Bench) -> None:
    request = bench.request()
    made = running(bench, request)
    bench.provider.terminate(sought(request, made.ref))
    bench.until(lambda: state_of(bench, request) in GONE)
    with pytest.raises(NotFound):
        bench.provider.provision(request)
    assert bench.existing() == []
    again = replace(request, operation_key="op-cin-1-2")
    assert running(bench, again).ref != made.ref


@pytest.mark.requirement("PRV-004")
@pytest.mark.requirement("TST-017", "ACC-055", "INV-063")
def test_a_machine_of_others_is_neither_found_nor_ended_under_our_name(bench: Bench) -> None:
    theirs = bench.foreign()
    request = bench.request()
    bench.until(lambda: theirs in bench.existing())
    assert bench.provider.inspect(sought(request)) is None
    bench.provider.terminate(sought(request))
    made = running(bench, request)
    bench.provider.terminate(sought(request, made.ref))
    bench.until(lambda: state_of(bench, request) in GONE)
    assert bench.existing() == [theirs]


# Behind a network


@pytest.mark.requirement("PRV-002", "PRV-004", "PRV-005")
def test_a_create_whose_answer_is_lost_is_ambiguous_and_its_machine_is_found(
    faulty: Faulty,
) -> None:
    request = faulty.request()
    faulty.lose_reply()
    with pytest.raises(Ambiguous):
        faulty.provider.provision(request)
    assert len(faulty.existing()) == 1
    faulty.until(lambda: state_of(faulty, request) is MachineState.RUNNING)
    found = faulty.provider.inspect(sought(request))
    assert found is not None
    assert faulty.provider.provision(request).ref == found.ref
    assert len(faulty.existing()) == 1


def test_a_create_that_is_throttled_made_nothing_and_works_later(faulty: Faulty) -> None:
    faulty.throttle()
    with pytest.raises(Throttled) as refused:
        faulty.provider.provision(faulty.request())
    assert refused.value.retry_after_s is None or refused.value.retry_after_s > 0
    assert faulty.existing() == []
    running(faulty, faulty.request())


@pytest.mark.case("FLT-004")
def test_where_an_offering_has_run_out_another_one_under_its_own_key_works(
    faulty: Faulty,
) -> None:
    scarce = Offering(name="scarce", machine="m5.large")
    request = faulty.request(offering=scarce, operation_key="op-cin-1-1-scarce")
    faulty.exhaust("scarce")
    with pytest.raises(OutOfCapacity):
        faulty.provider.provision(request)
    other = replace(
        request,
        offering=replace(request.offering, name="other", machine="c5.large"),
        operation_key="op-cin-1-1-other",
    )
    running(faulty, other)
    assert len(faulty.existing()) == 1


def test_all_pages_are_read(faulty: Faulty) -> None:
    for number in range(7):
        faulty.provider.provision(faulty.request(f"cin_{number}"))
    faulty.until(lambda: len(faulty.provider.list_machines(OURS).machines) == 7)
    assert faulty.provider.list_machines(OURS).complete


def test_a_listing_that_misses_a_page_says_so(faulty: Faulty) -> None:
    for number in range(7):
        faulty.provider.provision(faulty.request(f"cin_{number}"))
    faulty.until(lambda: len(faulty.provider.list_machines(OURS).machines) == 7)
    faulty.lose_page()
    listing = faulty.provider.list_machines(OURS)
    assert not listing.complete
    assert len(listing.machines) < 7
    assert a_request().owner.installation == OURS
