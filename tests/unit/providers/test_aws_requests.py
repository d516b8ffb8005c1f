"""What Amazon is asked, and what its errors mean."""

import importlib
import json
from dataclasses import replace
from types import ModuleType

import pytest

from forgeyard.errors import (
    Ambiguous,
    Denied,
    ForgeyardError,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
    Unavailable,
)
from forgeyard.fleet.ports import Bootstrap, ProvisionRequest
from forgeyard.model.fleet import CapacityClass, Market, Offering
from forgeyard.model.units import Resources
from providers import aws_errors, ec2
from providers.aws_sdk import AwsSettings, Sdk
from providers.cloudinit import user_data
from tests.fleet.requests import a_request

TOKEN = "fye1.01JABCDEF.c2VjcmV0"
PIN = f"sha256/{'A' * 43}="
HOME = Bootstrap(url="https://ci-1:8701,https://ci-2:8701", token=TOKEN, pin=PIN)


def a_wish(**changed: object) -> ProvisionRequest:
    return a_request(
        **{
            "offering": Offering(name="o", machine="m5.large", settings={"ami": "ami-1"}),
            "bootstrap": HOME,
            **changed,
        }
    )


# What a machine is told


def files_of(text: str) -> dict[str, str]:
    head, _, rest = text.partition("\n")
    assert head == "#cloud-config"
    found = json.loads(rest)
    assert found["runcmd"] == [["systemctl", "enable", "--now", "forgeyard-agent.service"]]
    assert all(file["permissions"] == "0600" for file in found["write_files"])
    return {file["path"]: file["content"] for file in found["write_files"]}


def test_a_machine_is_told_where_home_is_and_a_token_that_works_once_and_nothing_else() -> None:
    """No lasting secret travels in user data, which anybody on the machine can read."""
    capacity = CapacityClass(resources=Resources(slots=3))
    text = user_data(a_wish(capacity=capacity))
    files = files_of(text)
    assert files["/etc/forgeyard/token"] == f"{TOKEN}\n"
    assert text.count(TOKEN) == 1
    assert files["/etc/forgeyard/agent.env"].splitlines() == [
        f"AGENT_JOIN={HOME.url}",
        f"CA_PIN={PIN}",
        "FORGEYARD_AGENT__JOBS=3",
    ]
    assert set(files) == {"/etc/forgeyard/token", "/etc/forgeyard/agent.env"}


@pytest.mark.case("FLT-027")
def test_a_machine_is_told_when_to_end_itself_if_its_offering_says_so() -> None:
    def told(**settings: str) -> list[str]:
        offering = Offering(name="o", settings={"ami": "ami-1", **settings})
        wish = a_wish(offering=offering)
        assert ec2.launch(wish)["UserData"] == user_data(wish)
        return files_of(user_data(wish))["/etc/forgeyard/agent.env"].splitlines()

    assert "FORGEYARD_AGENT__GIVE_UP_S=3600" in told(give_up_s="3600")
    assert not [line for line in told() if "GIVE_UP" in line]
    for wrong in ("soon", "-1", "1.5", "9999999"):
        with pytest.raises(InvalidSpec, match="so long"):
            told(give_up_s=wrong)


@pytest.mark.parametrize(
    "home",
    [
        replace(HOME, url="http://ci-1:8701"),
        replace(HOME, token=""),
        replace(HOME, pin=""),
        replace(HOME, url="https://ci-1:8701\nLD_PRELOAD=/tmp/x"),
        replace(HOME, token="a b"),
        replace(HOME, url="https://" + "a" * 20_000),
    ],
)
def test_what_would_not_reach_home_or_not_stay_one_word_is_refused(home: Bootstrap) -> None:
    with pytest.raises(InvalidSpec) as refused:
        user_data(a_wish(bootstrap=home))
    assert refused.value.value is None or "a b" not in refused.value.value


# What is asked for


def test_a_request_says_everything_of_its_offering_and_its_key() -> None:
    settings = {
        "ami": "ami-1",
        "subnet": "subnet-1",
        "security_groups": "sg-1,sg-2",
        "instance_profile": "runner",
        "max_price": "0.05",
    }
    offering = Offering(
        name="o",
        machine="c5.large",
        zone="us-east-1a",
        market=Market.PREEMPTIBLE,
        settings=settings,
    )
    asked = ec2.launch(a_wish(offering=offering))
    assert asked["ClientToken"] == "op-cin-1-1"
    assert asked["ImageId"] == "ami-1"
    assert asked["InstanceType"] == "c5.large"
    assert asked["Placement"] == {"AvailabilityZone": "us-east-1a"}
    assert asked["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "SubnetId": "subnet-1",
            "DeleteOnTermination": True,
            "Groups": ["sg-1", "sg-2"],
        }
    ]
    assert not {"SubnetId", "SecurityGroupIds"} & set(asked), "EC2 takes them in one place only"
    assert asked["IamInstanceProfile"] == {"Name": "runner"}
    assert asked["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {
            "SpotInstanceType": "one-time",
            "InstanceInterruptionBehavior": "terminate",
            "MaxPrice": "0.05",
        },
    }
    assert "KeyName" not in asked
    anywhere = replace(offering, settings={"ami": "ami-1", "security_groups": "sg-1"})
    asked = ec2.launch(a_wish(offering=anywhere))
    assert asked["SecurityGroupIds"] == ["sg-1"]
    assert "NetworkInterfaces" not in asked


def test_a_template_or_the_image_of_the_class_serves_as_well() -> None:
    plain = Offering(name="o", settings={"launch_template": "lt-1"})
    asked = ec2.launch(a_wish(offering=plain))
    assert asked["LaunchTemplate"] == {"LaunchTemplateId": "lt-1", "Version": "$Default"}
    assert "ImageId" not in asked
    of_class = CapacityClass(image="ami-9")
    assert ec2.launch(a_wish(offering=Offering(name="o"), capacity=of_class))["ImageId"] == "ami-9"
    on_record = ec2.launch(a_wish(image="ami-7", capacity=of_class))
    assert on_record["ImageId"] == "ami-7", "a rollout gives new machines another image"
    with pytest.raises(InvalidSpec, match="neither an image"):
        ec2.launch(a_wish(offering=Offering(name="o")))


# What errors mean


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("RequestLimitExceeded", 503, Throttled),
        ("InsufficientInstanceCapacity", 500, OutOfCapacity),
        ("MaxSpotInstanceCountExceeded", 400, ProviderQuotaExceeded),
        ("UnauthorizedOperation", 403, Denied),
        ("InvalidClientTokenId", 403, Denied),
        ("IdempotentParameterMismatch", 400, InvalidSpec),
        ("InvalidSubnetID.NotFound", 400, InvalidSpec),
        ("IdempotentInstanceTerminated", 400, NotFound),
        ("InternalError", 500, Ambiguous),
        ("", 200, Ambiguous),
        ("NobodyHasHeardOfIt", 400, Unavailable),
    ],
)
def test_an_error_of_a_create_is_told_by_its_code(
    code: str, status: int, error: type[ForgeyardError]
) -> None:
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert type(aws_errors.ours(aws_errors.read(answer), what="x", writes=True)) is error


@pytest.mark.case("FLT-080")
@pytest.mark.parametrize("headers", [None, "x", {"retry-after": ["7"]}, {"retry-after": None}])
def test_a_code_stays_what_it_is_whatever_else_of_the_answer_cannot_be_read(
    headers: object,
) -> None:
    meta = {"HTTPStatusCode": "?", "HTTPHeaders": headers}
    answer = {"Error": {"Code": "VcpuLimitExceeded"}, "ResponseMetadata": meta}
    error = aws_errors.ours(aws_errors.read(answer), what="x", writes=True)
    assert type(error) is ProviderQuotaExceeded
    assert type(aws_errors.ours(aws_errors.read("?"), what="x", writes=True)) is Ambiguous


def test_a_server_fault_on_looking_changed_nothing() -> None:
    answer = {"Error": {"Code": "InternalError"}, "ResponseMetadata": {"HTTPStatusCode": 500}}
    assert type(aws_errors.ours(aws_errors.read(answer), what="x", writes=False)) is Unavailable


def test_no_code_means_two_things() -> None:
    codes = [code for group in aws_errors.CODES.values() for code in group]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(("said", "meant"), [("7", 7.0), ("99999", 3_600.0), ("soon", None)])
def test_a_throttled_call_says_for_how_long_if_that_is_known(
    said: str, meant: float | None
) -> None:
    answer = {
        "Error": {"Code": "Throttling"},
        "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": said}},
    }
    error = aws_errors.ours(aws_errors.read(answer), what="x", writes=False)
    assert isinstance(error, Throttled)
    assert error.retry_after_s == meant


def test_without_the_sdk_an_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(InvalidRequest) as refused:
        Sdk(AwsSettings(regions=("us-east-1",)))
    assert refused.value.allowed == "pip install 'forgeyard[aws]'"
