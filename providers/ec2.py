"""What Amazon says and is told, as plain data: answers read, requests written, nothing sent."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final

from annotated_types import MaxLen
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_pascal

from forgeyard.errors import Ambiguous, InvalidSpec, Unavailable
from forgeyard.fleet.ports import Interruption, Machine, ProvisionRequest
from forgeyard.model.capacity import MachineState
from forgeyard.model.fleet import Market, Offering
from providers.cloudinit import GIVE_UP, user_data

SETTINGS: Final = frozenset(
    {
        *("ami", "subnet", "security_groups", "instance_profile", "max_price"),
        *("launch_template", "launch_template_version", GIVE_UP),
    }
)
"""What an offering may say."""
STATES: Final[Mapping[str, MachineState]] = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    "shutting-down": MachineState.STOPPING,
    "stopping": MachineState.STOPPING,
    "stopped": MachineState.STOPPED,
    "terminated": MachineState.GONE,
}
ENDING: Final = frozenset({"shutting-down", "stopping", "stopped", "terminated"})
NOTICE_MS: Final = 120_000
"""How long after its warning a machine is taken away."""
WARNING: Final = "EC2 Spot Instance Interruption Warning"
ADVICE: Final = "EC2 Instance Rebalance Recommendation"
CHANGE: Final = "EC2 Instance State-change Notification"
LARGEST_BODY: Final = 256 * 1024
Text = Annotated[str, MaxLen(1_024)]
Id = Annotated[str, MaxLen(64)]


class _Answer(BaseModel, frozen=True, alias_generator=to_pascal):
    """A part of an answer; what is not asked for here is passed over."""


class _Tag(_Answer, frozen=True):
    key: Text
    value: Text = ""


class _State(_Answer, frozen=True):
    name: Text


class _Reason(_Answer, frozen=True):
    code: str = ""
    message: str = ""


class _Placement(_Answer, frozen=True):
    availability_zone: Text = ""


class Instance(_Answer, frozen=True):
    """A machine, as `DescribeInstances` and `RunInstances` tell of it."""

    instance_id: Id = Field(min_length=1)
    state: _State
    tags: Annotated[tuple[_Tag, ...], MaxLen(200)] = ()
    image_id: Id = ""
    instance_type: Id = ""
    placement: _Placement = _Placement()
    launch_time: datetime | None = None
    state_reason: _Reason = _Reason()
    spot_instance_request_id: Id = ""

    @property
    def is_gone(self) -> bool:
        """Tell whether it has ended."""
        return self.state.name == "terminated"

    def machine(self, region: str) -> Machine:
        """Say it in our words.

        Raises:
            Unavailable: its state is one that nobody here has heard of.
        """
        state = STATES.get(self.state.name)
        if state is None:
            raise Unavailable(f"{self.instance_id}: no such state", value=self.state.name)
        return Machine(
            ref=self.instance_id,
            state=state,
            tags={tag.key: tag.value for tag in self.tags},
            image=self.image_id,
            machine=self.instance_type,
            region=region,
            zone=self.placement.availability_zone,
            launched_at=None if self.launch_time is None else _epoch_ms(self.launch_time),
            detail=f"{self.state_reason.code} {self.state_reason.message}".strip()[:500],
        )


class _Reservation(_Answer, frozen=True):
    instances: tuple[object, ...] = ()


class _Page(_Answer, frozen=True):
    reservations: tuple[_Reservation, ...] = ()
    next_token: str = ""


class _Caller(_Answer, frozen=True):
    arn: Text


class _Ebs(_Answer, frozen=True):
    delete_on_termination: bool = False
    volume_size: int | None = None


class Disk(_Answer, frozen=True):
    """A disk that a machine of an image gets."""

    device_name: Text = Field(min_length=1)
    ebs: _Ebs | None = None

    @property
    def outlives(self) -> bool:
        """Tell whether it would stay when its machine goes."""
        return self.ebs is not None and not self.ebs.delete_on_termination

    def going(self) -> dict[str, object]:
        """Ask for the same disk, but that it goes with its machine."""
        size = None if self.ebs is None else self.ebs.volume_size
        same = {} if size is None else {"VolumeSize": size}
        return {"DeviceName": self.device_name, "Ebs": {**same, "DeleteOnTermination": True}}


class _Image(_Answer, frozen=True):
    block_device_mappings: Annotated[tuple[Disk, ...], MaxLen(100)] = ()


class _Images(_Answer, frozen=True):
    images: Annotated[tuple[_Image, ...], MaxLen(100)] = ()


class _Detail(BaseModel, frozen=True):
    instance_id: Annotated[str, Field(alias="instance-id", min_length=1, max_length=64)]
    state: Text = ""


class _Event(BaseModel, frozen=True):
    kind: Annotated[Text, Field(alias="detail-type")]
    source: Text = ""
    time: datetime
    detail: _Detail


class _Batch(_Answer, frozen=True):
    messages: tuple[object, ...] = ()


class _Receipt(_Answer, frozen=True):
    receipt_handle: Annotated[str, MaxLen(4_096)]


class _Received(_Receipt, frozen=True):
    body: Annotated[str, MaxLen(LARGEST_BODY)]


_INSTANCE = TypeAdapter(Instance)


def instance(entry: object) -> Instance:
    """Read one machine.

    Raises:
        Unavailable: it is none.
    """
    try:
        return _INSTANCE.validate_python(entry)
    except ValidationError as error:
        raise _unreadable("a machine", error) from error


def page(answer: object) -> tuple[tuple[object, ...], str]:
    """Read a page: the machines as they stand there, and the token of the next page.

    Raises:
        Unavailable: it is none.
    """
    try:
        read = _Page.model_validate(answer)
    except ValidationError as error:
        raise _unreadable("a page of machines", error) from error
    return tuple(one for found in read.reservations for one in found.instances), read.next_token


def caller(answer: object) -> str:
    """Read who we are: a user, or a role without the name of this one session of it.

    Raises:
        Unavailable: that cannot be read.
    """
    try:
        arn = _Caller.model_validate(answer).arn
    except ValidationError as error:
        raise _unreadable("who is asking", error) from error
    return "/".join(arn.split("/")[:2]) if ":assumed-role/" in arn else arn


def disks(answer: object) -> tuple[Disk, ...]:
    """Read which disks a machine of an image gets.

    Raises:
        Unavailable: that cannot be read.
    """
    try:
        found = _Images.model_validate(answer)
    except ValidationError as error:
        raise _unreadable("an image", error) from error
    return tuple(disk for image in found.images for disk in image.block_device_mappings)


def made(answer: object) -> Instance:
    """Read what was made.

    Raises:
        Ambiguous: something was, and it cannot be read what.
    """
    try:
        (entry,) = _Reservation.model_validate(answer).instances
        return instance(entry)
    except (ValueError, Unavailable) as error:
        raise Ambiguous("RunInstances: an answer without a machine") from error


def messages(answer: object) -> tuple[object, ...]:
    """Read the messages that a queue handed out; what is none of them says nothing."""
    try:
        return _Batch.model_validate(answer).messages
    except ValidationError:
        return ()


def notice(message: object) -> Interruption | None:
    """Read a message of the queue; `None`: it says nothing that matters, or nothing readable."""
    try:
        received = _Received.model_validate(message)
        event = _Event.model_validate(json.loads(received.body))
    except (ValidationError, ValueError, RecursionError):
        return None
    if event.source != "aws.ec2":
        return None
    at: int | None = _epoch_ms(event.time)
    if event.kind == WARNING:
        at = _epoch_ms(event.time) + NOTICE_MS
    elif event.kind == ADVICE:
        at = None
    elif event.kind != CHANGE or event.detail.state not in ENDING:
        return None
    return Interruption(
        ref=event.detail.instance_id,
        at=at,
        is_final=event.kind != ADVICE,
        receipt=received.receipt_handle,
    )


def receipt(message: object) -> str | None:
    """Read by what a message is forgotten, whatever it says."""
    try:
        return _Receipt.model_validate(message).receipt_handle
    except ValidationError:
        return None


def placed(offering: Offering, image: str) -> dict[str, object]:
    """Write what kind of machine is wanted, and where.

    Raises:
        InvalidSpec: the offering says what no instance has, or names neither image nor template.
    """
    settings = offering.settings
    for name in settings:
        if name not in SETTINGS:
            raise InvalidSpec(
                "an instance has no such setting",
                field=f"offerings.{offering.name}.settings",
                value=name,
                allowed=", ".join(sorted(SETTINGS)),
            )
    if not image and "launch_template" not in settings:
        raise InvalidSpec(
            "neither an image nor a launch template",
            field=f"offerings.{offering.name}.settings",
            allowed="ami, or launch_template, or an image of the capacity class",
        )
    written: dict[str, object] = {
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        **_named(offering, image),
    }
    if offering.market is Market.PREEMPTIBLE:
        price = {"MaxPrice": settings["max_price"]} if "max_price" in settings else {}
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        written["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {**spot, **price}}
    return written


def _named(offering: Offering, image: str) -> dict[str, object]:
    """Write what is only said if it is known."""
    settings = offering.settings
    said: dict[str, object] = {
        "ImageId": image,
        "InstanceType": offering.machine,
        **_network(settings),
    }
    if offering.zone:
        said["Placement"] = {"AvailabilityZone": offering.zone}
    if "instance_profile" in settings:
        said["IamInstanceProfile"] = {"Name": settings["instance_profile"]}
    if "launch_template" in settings:
        said["LaunchTemplate"] = {
            "LaunchTemplateId": settings["launch_template"],
            "Version": settings.get("launch_template_version", "$Default"),
        }
    return {name: value for name, value in said.items() if value}


def _network(settings: Mapping[str, str]) -> dict[str, object]:
    """Write where its network interface is; it goes with its machine, as EC2's own choice does."""
    groups = [g for g in settings.get("security_groups", "").split(",") if g]
    if "subnet" not in settings:
        return {"SecurityGroupIds": groups}
    card: dict[str, object] = {
        "DeviceIndex": 0,
        "SubnetId": settings["subnet"],
        "DeleteOnTermination": True,
    }
    return {"NetworkInterfaces": [{**card, "Groups": groups} if groups else card]}


def launch(request: ProvisionRequest, disks: Sequence[Disk] = ()) -> dict[str, object]:
    """Write the whole request; disks that would outlive the machine go with it.

    Raises:
        InvalidSpec: it cannot be asked for.
    """
    image = request.capacity.image
    tags = request.owner.tags(operation_key=request.operation_key, image=image)
    kept = [one.going() for one in disks if one.outlives]
    return {
        **placed(request.offering, image_for(request)),
        **({"BlockDeviceMappings": kept} if kept else {}),
        "ClientToken": request.operation_key,
        "UserData": user_data(request),
        **tagged(request.offering, {**tags, "Name": request.runner_name}),
    }


def tagged(offering: Offering, tags: Mapping[str, str]) -> dict[str, object]:
    """Write the tags of a machine, and of all that is made with it."""
    listed = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    kinds = ["instance", "volume", "network-interface"]
    if offering.market is Market.PREEMPTIBLE:
        kinds.append("spot-instances-request")
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": listed} for kind in kinds]}


def image_for(request: ProvisionRequest) -> str:
    """Tell which image a machine boots: the one on record, which a rollout changes, comes first."""
    return request.image or image_of(request.offering, request.capacity.image)


def image_of(offering: Offering, of_class: str = "") -> str:
    """Tell which image is booted; the offering's own counts."""
    return offering.settings.get("ami") or (of_class if of_class.startswith("ami-") else "")


def _epoch_ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def _unreadable(what: str, error: ValidationError) -> Unavailable:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return Unavailable(f"EC2 answered {what} that cannot be read: {where}: {first['msg']}")
