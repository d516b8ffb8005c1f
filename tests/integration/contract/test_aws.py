"""Amazon's own: spot, regions, warnings, what a machine is started with, and what a doctor sees."""

import base64
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from forgeyard.errors import (
    Ambiguous,
    Denied,
    ForgeyardError,
    InvalidSpec,
    ProviderQuotaExceeded,
    Unavailable,
)
from forgeyard.fleet.ports import CheckLevel, Interruption
from forgeyard.model.fleet import Market, Offering
from providers.aws import AwsProvider
from tests.fleet.requests import OURS, sought
from tests.integration.contract.benches import (
    GONE,
    AwsBench,
    client,
    running,
    settings_for,
    state_of,
)

pytestmark = pytest.mark.integration
TIME = "2026-11-30T12:00:00Z"
TIME_MS = 1_796_040_000_000


# Creates


@pytest.mark.requirement("PRV-002")
def test_a_server_fault_may_come_after_the_machine_was_made(aws: AwsBench) -> None:
    aws.proxy.broken.append(("RunInstances", 503, "ServiceUnavailable"))
    with pytest.raises(Ambiguous):
        aws.provider.provision(aws.request())
    assert len(aws.existing()) == 1
    aws.until(lambda: state_of(aws, aws.request()) is not None)
    aws.provider.provision(aws.request())
    assert len(aws.existing()) == 1


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "MaxSpotInstanceCountExceeded", ProviderQuotaExceeded),
        (400, "VcpuLimitExceeded", ProviderQuotaExceeded),
        (403, "UnauthorizedOperation", Denied),
        (400, "InvalidParameterValue", InvalidSpec),
        (400, "SomethingNobodyHasHeardOf", Unavailable),
    ],
)
def test_what_amazon_refuses_is_told_by_its_code_after_one_try(
    aws: AwsBench, status: int, code: str, error: type[ForgeyardError]
) -> None:
    aws.proxy.refused.append(("RunInstances", status, code))
    with pytest.raises(error, match=code):
        aws.provider.provision(aws.request())
    assert len(aws.proxy.called("RunInstances")) == 1
    assert aws.existing() == []


def test_where_nobody_listens_nothing_was_made_and_nothing_is_ambiguous() -> None:
    provider = AwsProvider(settings_for("http://127.0.0.1:9"))
    with pytest.raises(Unavailable):
        provider.list_machines(OURS)


def test_twelve_at_once_with_one_key_are_one_machine(aws: AwsBench) -> None:
    refs: list[str] = []
    request = aws.request()
    threads = [
        threading.Thread(target=lambda: refs.append(aws.provider.provision(request).ref))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refs) == 12
    assert len(set(refs)) == len(aws.existing()) == 1


@pytest.mark.requirement("PHA-015")
def test_a_machine_starts_with_its_token_and_is_tagged_to_the_last_disk(aws: AwsBench) -> None:
    request = aws.request()
    made = running(aws, request)
    (call,) = aws.proxy.called("RunInstances")
    assert call["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert call["MetadataOptions.HttpTokens"] == "required"
    assert call["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    assert "KeyName" not in call
    said = aws.direct.describe_instance_attribute(InstanceId=made.ref, Attribute="userData")
    text = base64.b64decode(said["UserData"]["Value"]).decode()
    assert request.bootstrap.token in text
    assert request.bootstrap.pin in text
    (volume,) = aws.direct.describe_volumes()["Volumes"]
    assert {"Key": "forgeyard:installation", "Value": OURS} in volume["Tags"]


# What is made with a machine


def left_over(aws: AwsBench) -> list[str]:
    """Name every disk and network interface there is, by moto's own word."""
    disks = [one["VolumeId"] for one in aws.direct.describe_volumes()["Volumes"]]
    cards = aws.direct.describe_network_interfaces()["NetworkInterfaces"]
    return [*disks, *(one["NetworkInterfaceId"] for one in cards)]


@pytest.mark.case("FLT-009")
def test_disk_and_interface_are_made_with_their_machine_and_go_with_it(aws: AwsBench) -> None:
    """The image says that its disk stays; nothing is made in a call of its own."""
    aws.proxy.refused.append(("RunInstances", 500, "InternalError"))
    with pytest.raises(Ambiguous):
        aws.provider.provision(aws.request())
    assert left_over(aws) == []
    before = len(aws.proxy.calls)
    subnet = aws.direct.describe_subnets()["Subnets"][0]["SubnetId"]
    settings = {"ami": aws.ami, "subnet": subnet}
    request = aws.request(offering=Offering(name="o", machine="m5.large", settings=settings))
    made = running(aws, request)
    writes = {call["Action"] for call in aws.proxy.calls[before:]} - {"DescribeInstances"}
    assert writes == {"RunInstances"}
    call = aws.proxy.called("RunInstances")[-1]
    assert call["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    assert call["NetworkInterface.1.DeleteOnTermination"] == "true"
    (machine,) = aws.direct.describe_instances(InstanceIds=[made.ref])["Reservations"][0][
        "Instances"
    ]
    held = [one["Ebs"]["DeleteOnTermination"] for one in machine["BlockDeviceMappings"]]
    held += [one["Attachment"]["DeleteOnTermination"] for one in machine["NetworkInterfaces"]]
    assert held == [True, True]
    assert len(left_over(aws)) == 2
    aws.provider.terminate(sought(request, made.ref))
    aws.until(lambda: state_of(aws, request) in GONE)
    assert left_over(aws) == []


@pytest.mark.case("FLT-010")
def test_machines_that_a_quota_forbids_leave_nothing_behind(aws: AwsBench) -> None:
    for number in range(50):
        aws.proxy.refused.append(("RunInstances", 400, "VcpuLimitExceeded"))
        with pytest.raises(ProviderQuotaExceeded):
            aws.provider.provision(aws.request(f"cin_{number}"))
    assert {call["Action"] for call in aws.proxy.calls} == {"DescribeImages", "RunInstances"}
    assert len(aws.proxy.called("DescribeImages")) == 1, "an image never changes"
    assert left_over(aws) == []
    assert aws.existing() == []


# Spot


@pytest.mark.requirement("PRI-060")
@pytest.mark.case("FLT-020")
def test_the_request_of_a_spot_machine_ends_with_it_and_makes_no_other(aws: AwsBench) -> None:
    aws.proxy.persistent = True
    request = aws.request(offering=Offering(name="spot", market=Market.PREEMPTIBLE))
    made = running(aws, request)
    (call,) = aws.proxy.called("RunInstances")
    assert call["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    aws.provider.terminate(sought(request, made.ref))
    aws.until(lambda: state_of(aws, request) in GONE)
    assert aws.existing() == []
    aws.plant({"Name": "clone"})
    assert [one.ref for one in aws.provider.list_machines(OURS).machines] == [made.ref]


# Regions


@pytest.mark.requirement("PRI-070")
def test_machines_are_listed_in_all_regions_and_one_that_fails_makes_it_incomplete(
    aws: AwsBench,
) -> None:
    regions = ("us-east-1", "eu-west-1")
    provider = AwsProvider(settings_for(aws.proxy.url, regions=regions))
    for number, region in enumerate(regions):
        there: Any = client(aws.proxy.upstream, "ec2", region)
        settings = {"ami": there.register_image(Name="far")["ImageId"]}
        offering = Offering(name="o", machine="m5.large", region=region, settings=settings)
        provider.provision(aws.request(f"cin_{number}", offering=offering))
    aws.until(lambda: len(provider.list_machines(OURS).machines) == 2)
    assert {one.region for one in provider.list_machines(OURS).machines} == set(regions)
    aws.proxy.refused.append(("DescribeInstances", 503, "Unavailable"))
    listing = provider.list_machines(OURS)
    assert not listing.complete
    assert len(listing.machines) == 1
    request = aws.request(offering=Offering(name="far", region="ap-south-1"))
    with pytest.raises(InvalidSpec, match="not among those"):
        provider.provision(request)


def test_where_nothing_can_be_listed_the_reason_is_an_error(aws: AwsBench) -> None:
    aws.proxy.refused.append(("DescribeInstances", 403, "UnauthorizedOperation"))
    with pytest.raises(Denied):
        aws.provider.list_machines(OURS)


# Warnings


class Queue:
    """The queue that EventBridge would put its events into."""

    def __init__(self, aws: AwsBench) -> None:
        self.sqs: Any = client(aws.proxy.upstream, "sqs")
        self.url = self.sqs.create_queue(QueueName="warnings")["QueueUrl"]
        self.provider = AwsProvider(settings_for(aws.proxy.url, queue_url=self.url))

    def put(self, body: str) -> None:
        self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def tell(self, kind: str, **detail: str) -> None:
        event = {"detail-type": kind, "source": "aws.ec2", "time": TIME, "detail": detail}
        self.put(json.dumps(event))

    def size(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        has = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(has[name]) for name in names)

    def fetched(self) -> list[Interruption]:
        found: list[Interruption] = []
        for _ in range(3):
            found += self.provider.interruptions()
        return found


@pytest.fixture
def queue(aws: AwsBench) -> Queue:
    """Make an empty queue."""
    return Queue(aws)


@pytest.mark.requirement("PRI-060")
def test_warnings_are_told_until_they_are_acknowledged(queue: Queue) -> None:
    warning = {"instance-id": "i-1", "instance-action": "terminate"}
    queue.tell("EC2 Spot Instance Interruption Warning", **warning)
    queue.tell("EC2 Instance Rebalance Recommendation", **{"instance-id": "i-2"})
    queue.tell(
        "EC2 Instance State-change Notification", **{"instance-id": "i-3", "state": "terminated"}
    )
    found = {one.ref: one for one in queue.fetched()}
    assert (found["i-1"].is_final, found["i-1"].at) == (True, TIME_MS + 120_000)
    assert (found["i-2"].is_final, found["i-2"].at) == (False, None)
    assert (found["i-3"].is_final, found["i-3"].at) == (True, TIME_MS)
    assert queue.size() == 3
    queue.provider.acknowledge(tuple(one.receipt for one in found.values()))
    assert queue.size() == 0


def test_what_says_nothing_is_taken_off_the_queue_and_stops_nobody(queue: Queue) -> None:
    queue.put("{")
    queue.put("[" * 5_000)
    queue.put('{"detail-type": 7}')
    queue.tell("EC2 Instance State-change Notification", **{"instance-id": "i", "state": "running"})
    queue.tell("EC2 Instance Rebalance Recommendation", **{"instance-id": "i-2"})
    assert [one.ref for one in queue.fetched()] == ["i-2"]
    assert queue.size() == 1


def test_without_a_queue_there_are_no_warnings(aws: AwsBench) -> None:
    assert aws.provider.interruptions() == ()


# The doctor


def test_the_doctor_tries_everything_and_makes_nothing(aws: AwsBench) -> None:
    good = Offering(name="good", machine="m5.large", settings={"ami": aws.ami})
    no_image = replace(good, name="no-image", settings={"ami": "ami-00000000000000000"})
    no_subnet = replace(good, name="no-subnet", settings={"ami": aws.ami, "subnet": "subnet-9"})
    wrong = replace(good, name="wrong", settings={"ami": aws.ami, "kye": "x"})
    checks = aws.provider.check((good, no_image, no_subnet, wrong))
    assert {check.name: check.level for check in checks} == {
        "identity": CheckLevel.OK,
        "region us-east-1": CheckLevel.OK,
        "offering good": CheckLevel.OK,
        "offering no-image": CheckLevel.FAILED,
        "offering no-subnet": CheckLevel.FAILED,
        "offering wrong": CheckLevel.FAILED,
    }
    assert (
        "InvalidAMIID.NotFound" in {check.name: check.text for check in checks}["offering no-image"]
    )
    assert aws.existing() == []
