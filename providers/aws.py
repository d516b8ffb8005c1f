"""Machines of Amazon EC2.

A machine is found by its name, or by tags; never by its client token, which Amazon forgets sooner
or later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from forgeyard.errors import ForgeyardError, InvalidSpec, NotFound, Unavailable
from forgeyard.fleet.ports import (
    IDENTITY,
    TAG_INSTALLATION,
    TAG_INSTANCE,
    TAG_OPERATION,
    Check,
    CheckLevel,
    Interruption,
    Listing,
    Machine,
    Price,
    ProvisionRequest,
    Sku,
    Sought,
)
from forgeyard.model.fleet import Offering
from providers import aws_errors, aws_prices, ec2
from providers.aws_sdk import AwsSettings, Client, Sdk

MOST_PAGES: Final = 500
AT_ONCE: Final = 10
"""Messages that the queue hands out or forgets in one call."""


class AwsProvider:
    """Machines in one account, in the regions that the configuration names."""

    def __init__(self, settings: AwsSettings) -> None:
        if not settings.regions:
            raise InvalidSpec("no region", field="regions", allowed="at least one")
        self._settings = settings
        self._sdk = Sdk(settings)
        self._disks_of: dict[tuple[str, str], tuple[ec2.Disk, ...]] = {}

    @property
    def kind(self) -> str:
        """Name the sort of infrastructure."""
        return "aws"

    def provision(self, request: ProvisionRequest) -> Machine:
        """Make a machine, or get the one that this very request has made.

        Raises:
            Ambiguous: it may have been made.
            NotFound: it was made, and is gone.
            ForgeyardError: it was not made, for the reason of the code.
        """
        region = self._region(request.offering)
        arguments = ec2.launch(request, self._disks(region, ec2.image_for(request)))
        with self._sdk.asking("RunInstances", writes=True):
            answer = self._ec2(region).run_instances(**arguments)
        return ec2.made(answer).machine(region)

    def inspect(self, sought: Sought) -> Machine | None:
        """Find a machine by name, else by the tags of its operation."""
        region = self._region(sought.offering)
        found = self._find(sought, region)
        return None if found is None else found.machine(region)

    def list_machines(self, installation: str) -> Listing:
        """List what has our tag, in all regions; what fails midway makes it incomplete.

        Raises:
            ForgeyardError: nothing at all could be read.
        """
        filters = _filters({TAG_INSTALLATION: installation})
        machines: list[Machine] = []
        failures: list[ForgeyardError] = []
        pages = 0
        for region in self._settings.regions:
            try:
                for entries in self._pages(region, filters):
                    pages += 1
                    machines += _readable(entries, region, failures)
            except ForgeyardError as error:
                failures.append(error)
        if failures and not pages:
            raise failures[0]
        return Listing(machines=tuple(machines), complete=not failures)

    def terminate(self, sought: Sought) -> None:
        """Ask for the end of a machine, and of the spot request that would make it again."""
        region = self._region(sought.offering)
        found = self._find(sought, region)
        request_id = "" if found is None else found.spot_instance_request_id
        if request_id:
            with suppress(NotFound), self._sdk.asking("CancelSpotInstanceRequests"):
                self._ec2(region).cancel_spot_instance_requests(SpotInstanceRequestIds=[request_id])
        ref = sought.ref if found is None else found.instance_id
        if ref:
            with suppress(NotFound), self._sdk.asking("TerminateInstances"):
                self._ec2(region).terminate_instances(InstanceIds=[ref])

    def interruptions(self) -> tuple[Interruption, ...]:
        """Fetch a few warnings; messages that say nothing are forgotten at once."""
        if not self._settings.queue_url:
            return ()
        with self._sdk.asking("ReceiveMessage"):
            answer = self._queue().receive_message(
                QueueUrl=self._settings.queue_url, MaxNumberOfMessages=AT_ONCE, WaitTimeSeconds=0
            )
        messages = ec2.messages(answer)
        notices = [(message, ec2.notice(message)) for message in messages]
        idle = (ec2.receipt(message) for message, notice in notices if notice is None)
        self.acknowledge(tuple(one for one in idle if one is not None))
        return tuple(notice for _, notice in notices if notice is not None)

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Take messages off the queue; what fails comes again."""
        for start in range(0, len(receipts), AT_ONCE):
            some = receipts[start : start + AT_ONCE]
            entries = [{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(some)]
            with self._sdk.asking("DeleteMessageBatch"):
                self._queue().delete_message_batch(
                    QueueUrl=self._settings.queue_url, Entries=entries
                )

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Try credentials, and for each offering a dry run, its image and its subnet."""
        looks: list[tuple[str, Callable[[], str]]] = [(IDENTITY, self._named)]
        looks += [(f"region {one}", partial(self._looked, one)) for one in self._settings.regions]
        looks += [(f"offering {one.name}", partial(self._rehearsed, one)) for one in offerings]
        return tuple(_tried(name, look) for name, look in looks)

    def price(self, sku: Sku, *, now: int) -> Price:
        """Ask for the present price of a kind of machine."""
        return aws_prices.price(self._sdk, sku, sku.region or self._settings.regions[0], now=now)

    # Within

    def _ec2(self, region: str) -> Client:
        return self._sdk.client("ec2", region)

    def _queue(self) -> Client:
        return self._sdk.client("sqs", self._settings.regions[0])

    def _disks(self, region: str, image: str) -> tuple[ec2.Disk, ...]:
        """List the disks of an image, which never change; those of a template are its own."""
        if not image:
            return ()
        known = self._disks_of.get((region, image))
        if known is None:
            with self._sdk.asking("DescribeImages"):
                answer = self._ec2(region).describe_images(ImageIds=[image])
            known = self._disks_of[region, image] = ec2.disks(answer)
        return known

    def _region(self, offering: Offering) -> str:
        """Tell where an offering's machines are.

        Raises:
            InvalidSpec: nobody would look there.
        """
        region = offering.region or self._settings.regions[0]
        if region not in self._settings.regions:
            raise InvalidSpec(
                "this region is not among those of the provider",
                field=f"offerings.{offering.name}.region",
                value=region,
                allowed=", ".join(self._settings.regions),
            )
        return region

    def _find(self, sought: Sought, region: str) -> ec2.Instance | None:
        """Find a machine; one that lives before one that has ended."""
        if sought.ref:
            with suppress(NotFound), self._sdk.asking("DescribeInstances"):
                answer = self._ec2(region).describe_instances(InstanceIds=[sought.ref])
                return next((ec2.instance(entry) for entry in ec2.page(answer)[0]), None)
            return None
        owner = sought.owner
        tags = {
            TAG_INSTALLATION: owner.installation,
            TAG_INSTANCE: owner.instance_id,
            TAG_OPERATION: sought.operation_key,
        }
        pages = self._pages(region, _filters(tags))
        found = [ec2.instance(entry) for entries in pages for entry in entries]
        return min(found, key=lambda one: one.is_gone, default=None)

    def _pages(
        self, region: str, filters: Sequence[Mapping[str, object]]
    ) -> Iterator[tuple[object, ...]]:
        more: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            with self._sdk.asking("DescribeInstances"):
                answer = self._ec2(region).describe_instances(
                    Filters=filters, MaxResults=self._settings.page_size, **more
                )
            entries, token = ec2.page(answer)
            yield entries
            if not token:
                return
            more = {"NextToken": token}
        raise Unavailable(f"DescribeInstances: more than {MOST_PAGES} pages in {region}")

    def _named(self) -> str:
        """Say as whom we are let in, and by which key if it is one that lasts."""
        with self._sdk.asking("GetCallerIdentity"):
            answer = self._sdk.client("sts", self._settings.regions[0]).get_caller_identity()
        key = self._sdk.lasting_key()
        return ec2.caller(answer) + (f", by a lasting key that ends in {key[-4:]}" if key else "")

    def _looked(self, region: str) -> str:
        with self._sdk.asking("DescribeInstances"):
            self._ec2(region).describe_instances(MaxResults=5)
        return "may be read"

    def _rehearsed(self, offering: Offering) -> str:
        """Look at image and subnet, and make a machine without making it."""
        client, image = self._ec2(self._region(offering)), ec2.image_of(offering)
        if image:
            with self._sdk.asking("DescribeImages"):
                client.describe_images(ImageIds=[image])
        subnet = offering.settings.get("subnet")
        if subnet:
            with self._sdk.asking("DescribeSubnets"):
                client.describe_subnets(SubnetIds=[subnet])
        if not image and "launch_template" not in offering.settings:
            return "not rehearsed: its image is that of the capacity class"
        tags = ec2.tagged(offering, {TAG_INSTALLATION: self._settings.installation or "none"})
        try:
            with self._sdk.asking("RunInstances"):
                client.run_instances(DryRun=True, **ec2.placed(offering, image), **tags)
        except Unavailable as error:
            if error.value != aws_errors.DRY_RUN:
                raise
        return "may be made"


def _filters(tags: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]


def _readable(
    entries: Sequence[object], region: str, failures: list[ForgeyardError]
) -> Iterator[Machine]:
    for entry in entries:
        try:
            yield ec2.instance(entry).machine(region)
        except ForgeyardError as error:
            failures.append(error)


def _tried(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, level=CheckLevel.OK, text=look())
    except ForgeyardError as error:
        return Check(name=name, level=CheckLevel.FAILED, text=error.message)
