"""Who we are at Amazon: a principal of our own that may do what the adapter does, and no more."""

import base64
import json
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from forgeyard.errors import Denied, ForgeyardError
from forgeyard.fleet.doctor import examine
from forgeyard.fleet.ports import TAG_INSTALLATION, CheckLevel, Sku
from forgeyard.machine_settings import ProviderConfig
from forgeyard.model.capability import Platform
from forgeyard.model.fleet import Market, Offering
from forgeyard.store import (
    breakers,
    fleet_symptoms,
    fleet_views,
    fleets,
    prices,
    provider_checks,
)
from forgeyard.store.engine import read
from forgeyard.store.shares import Intent
from providers.aws import AwsProvider
from providers.aws_sdk import AwsSettings, Client
from tests.builders import RNG, a_fleet_spec
from tests.fleet.requests import OURS, sought
from tests.integration.contract.benches import AwsBench, client, running, settings_for
from tests.leasing import Desk

pytestmark = pytest.mark.integration
ME = Intent(actor="ann", channel="test", reason="a test")
POLICY = Path(__file__).parents[3] / "deploy" / "aws" / "policy.json"
SERVICES = ("ec2", "sqs", "pricing", "sts")
IMPLIED = {"ec2:CreateTags"}
"""What Amazon asks of whoever makes something with tags."""
NAMED_OTHERWISE = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}
"""What a permission is called, where that is not the name of the call."""


class Statement:
    """One statement of the policy."""

    def __init__(self, written: dict[str, object]) -> None:
        self.actions = _listed(written["Action"])
        self.resources = _listed(written["Resource"])
        self.condition = written.get("Condition")
        self.effect = written["Effect"]


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in list(value)]


@pytest.fixture
def statements() -> list[Statement]:
    """Read the policy that is handed to operators."""
    found = json.loads(POLICY.read_text())
    assert found["Version"] == "2012-10-17"
    return [Statement(one) for one in found["Statement"]]


def permissions() -> dict[str, str]:
    """Tell by the name of a call, as the SDK has it, which permission it needs."""
    found: dict[str, str] = {}
    for service in SERVICES:
        for call in client(9, service).meta.method_to_api_mapping.values():
            found[call] = NAMED_OTHERWISE.get(f"{service}:{call}", f"{service}:{call}")
    return found


def callable_operations() -> set[str]:
    """Name the calls that the adapter's types let it make."""
    methods = {
        method: call
        for service in SERVICES
        for method, call in client(9, service).meta.method_to_api_mapping.items()
    }
    return {methods[name] for name in vars(Client) if not name.startswith("_")}


def did_everything(aws: AwsBench) -> set[str]:
    """Do all that an adapter does, and tell which calls arrived."""
    sqs = client(aws.proxy.upstream, "sqs")
    queue = sqs.create_queue(QueueName="warnings")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="{")
    provider = AwsProvider(settings_for(aws.proxy.url, queue_url=queue))
    subnet = aws.direct.describe_subnets()["Subnets"][0]["SubnetId"]
    settings = {"ami": aws.ami, "subnet": subnet}
    offering = Offering(
        name="spot", machine="m5.large", market=Market.PREEMPTIBLE, settings=settings
    )
    request = aws.request(offering=offering)
    provider.check((offering,))
    provider.interruptions()
    for market in Market:
        sku = Sku(platform=Platform.LINUX, machine="m5.large", region="", zone="", market=market)
        provider.price(sku, now=1_796_040_000_000)
    made = running(aws, request)
    provider.list_machines(OURS)
    provider.terminate(sought(request, made.ref))
    return {call["Action"] for call in aws.proxy.calls}


@pytest.mark.requirement("PRV-008", "ACC-052")
def test_the_policy_allows_exactly_the_calls_that_are_made(
    aws: AwsBench, statements: list[Statement]
) -> None:
    made = did_everything(aws)
    assert made == callable_operations(), "the test does all that the adapter can"
    needed = {permissions()[call] for call in made} | IMPLIED
    assert {action for one in statements for action in one.actions} == needed
    assert {one.effect for one in statements} == {"Allow"}


@pytest.mark.requirement("PRV-008", "ACC-052")
def test_nothing_can_be_made_tagged_or_ended_but_what_is_ours(statements: list[Statement]) -> None:
    """What changes anything names what it may touch, or hangs on the tag of this installation."""
    for one in statements:
        if all(re.match(r"\w+:(Describe|Get)", action) for action in one.actions):
            continue
        assert "*" not in one.resources
        wide = [it for it in one.resources if it.endswith("/*")]
        if not wide:
            continue
        if one.actions == ["ec2:CreateTags"]:
            assert one.condition == {"StringEquals": {"ec2:CreateAction": "RunInstances"}}
            continue
        (kind, said) = next(iter(dict(one.condition)["StringEquals"].items()))
        assert kind in {f"aws:RequestTag/{TAG_INSTALLATION}", f"aws:ResourceTag/{TAG_INSTALLATION}"}
        assert said == "INSTALLATION"
    every = {action for one in statements for action in one.actions}
    assert not [it for it in every if "*" in it or it.startswith(("iam:", "organizations:"))]


@pytest.mark.requirement("ACC-053")
def test_nothing_opens_ssh_to_a_machine(aws: AwsBench, statements: list[Statement]) -> None:
    """No key pair, no rule of a security group, no daemon: an agent calls home, nobody calls it."""
    running(aws, aws.request())
    (call,) = aws.proxy.called("RunInstances")
    assert "KeyName" not in call
    told = base64.b64decode(call["UserData"]).decode().lower()
    assert not re.search(r"ssh|authorized_keys|password|\b22\b", told)
    every = {action for one in statements for action in one.actions}
    assert not [it for it in every if re.search("SecurityGroup|KeyPair|Ingress|Connect|ssm", it)]


# Whose credentials


def signers(aws: AwsBench) -> set[str]:
    """Name the keys that calls were signed with."""
    found = (re.search(r"Credential=(\w+)/", head["Authorization"]) for head in aws.proxy.heads)
    return {one[1] for one in found if one is not None}


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Run where nothing says who we are."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def without_keys(aws: AwsBench, **changed: object) -> AwsProvider:
    """Make a provider that is told no key, as the worker makes it."""
    given = AwsSettings(regions=("us-east-1",), endpoint_url=aws.proxy.url)
    return AwsProvider(settings_for(given.endpoint_url, access_key="", secret_key="", **changed))


@pytest.mark.requirement("BOO-015")
def test_the_configuration_holds_no_credentials_and_cannot(
    aws: AwsBench, nobody: pytest.MonkeyPatch
) -> None:
    secret = re.compile("secret|password|access|token|key", re.IGNORECASE)
    assert not [name for name in ProviderConfig.model_fields if secret.search(name)]
    with pytest.raises(ValidationError):
        ProviderConfig.model_validate({"kind": "aws", "regions": ["x"], "secret_key": "s"})
    with pytest.raises(Denied):
        without_keys(aws).list_machines(OURS)
    assert aws.proxy.calls == []


@pytest.mark.requirement("BOO-015", "BOO-016")
def test_a_workload_with_an_identity_of_its_own_needs_no_lasting_key(
    aws: AwsBench, nobody: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token that the platform puts into a file is exchanged for keys that end by themselves."""
    (tmp_path / "token").write_text("a token of the platform")
    nobody.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    nobody.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/forgeyard")
    nobody.setenv("AWS_ROLE_SESSION_NAME", "worker-1")
    nobody.setenv("AWS_DEFAULT_REGION", "us-east-1")
    nobody.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{aws.proxy.upstream}")
    provider = without_keys(aws)
    assert provider.list_machines(OURS).complete
    assert {head.get("X-Amz-Security-Token") is not None for head in aws.proxy.heads} == {True}
    (key,) = signers(aws)
    assert key.startswith("ASIA")
    (who,) = (one for one in provider.check(()) if one.name == "identity")
    assert who.text == "arn:aws:sts::123456789012:assumed-role/forgeyard"


@pytest.mark.requirement("BOO-017")
def test_each_provider_is_a_principal_of_its_own_and_says_which(
    aws: AwsBench, nobody: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fleets are looked after under the profile that is theirs, whoever else is known there."""
    keys = {"default": "AKIADEFAULTAAAAAAAAA", "fleets": "AKIAFLEETSAAAAAAAAAA"}
    (tmp_path / "credentials").write_text(
        "".join(
            f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = s-{name}\n"
            for name, key in keys.items()
        )
    )
    provider = without_keys(aws, profile="fleets")
    provider.list_machines(OURS)
    checks = provider.check(())
    assert signers(aws) == {keys["fleets"]}
    (who,) = (one for one in checks if one.name == "identity")
    assert who.level is CheckLevel.OK
    assert who.text.endswith("by a lasting key that ends in AAAA")
    assert "s-fleets" not in str(checks)


@pytest.mark.requirement("API-020")
def test_what_amazon_says_about_our_credentials_goes_no_further_than_its_code(
    aws: AwsBench, sqlite_engine: sa.Engine
) -> None:
    """Its prose may name keys; checks, prices and errors are what people are shown later."""
    prose = "The key AKIAIOSFODNN7EXAMPLE with secret wJalrXUtnFEMI is not valid"
    refused = f"<Response><Errors><Error><Code>AuthFailure</Code><Message>{prose}</Message>"
    refused += "</Error></Errors><RequestID>r</RequestID></Response>"
    aws.proxy.rejection = refused
    settings = settings_for(aws.proxy.url, secret_key="wJalrXUtnFEMI")
    provider = AwsProvider(settings)
    shown = [repr(settings)]
    sku = Sku(
        platform=Platform.LINUX, machine="m5.large", region="", zone="", market=Market.PREEMPTIBLE
    )
    offering = Offering(name="o", machine="m5.large", market=Market.PREEMPTIBLE)
    checks, price = provider.check((offering,)), provider.price(sku, now=1_796_040_000_000)
    shown += [str(checks), str(price)]
    with pytest.raises(ForgeyardError) as caught:
        provider.provision(aws.request())
    shown += [str(caught.value), caught.value.message, str(caught.value.value)]
    desk = Desk(sqlite_engine)
    spec = a_fleet_spec(provider="aws", offerings=(offering,))
    fleet = desk.change(fleets.apply, spec, ME, expected_version=None, rng=RNG)
    desk.change(provider_checks.keep, "aws", checks, now=1)
    desk.change(prices.keep, "aws", (price,), now=1)
    desk.change(breakers.failed, "aws", fleet.fleet_id, "o", caught.value, now=2**50)
    with read(sqlite_engine) as connection:
        found = examine(fleet_symptoms.read_symptoms(connection, "builders"))
        stands = fleet_views.standing(connection, "builders")
    shown += [str(found), str(stands)]
    for text in (shown[1], shown[2], shown[-2], shown[-1]):
        assert "AuthFailure" in text, "people are told what is wrong"
    assert not [text for text in shown[1:] if "wJalrXUtnFEMI" in text or "AKIAIOSFODNN7" in text]
    assert "wJalrXUtnFEMI" not in shown[0]
