"""What Temporal keeps is sealed (S15): canaries are searched for in its database and histories.

Each search has a control: the same canary, written without keys, has to be found.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from activities import contracts
from activities.connection import connect, data_converter, payload_codec
from forgeyard.config import TemporalConfig
from forgeyard.errors import UnreadablePayload
from forgeyard.trust.sealing import add_key
from tests.builders import a_job_spec
from tests.integration.temporal.conftest import build_house
from tests.integration.temporal.house import Driver
from tests.integration.temporal.server import Server
from worker.wiring import register_search_attributes

pytestmark = pytest.mark.integration
QUEUE = "canaries"
HOURS = timedelta(hours=1)


@activity.defn
async def sing(secret: str) -> str:
    """Leak a secret in every way that an activity has."""
    activity.heartbeat(f"beat {secret}")
    if activity.info().attempt == 1:
        raise ValueError(f"first {secret}")
    raise ApplicationError(f"failed with {secret}", f"detail {secret}", non_retryable=True)


@workflow.defn
class Canary:
    """Leak a secret in every way that a workflow has, but for search attributes and its id."""

    def __init__(self) -> None:
        self._heard = ""

    @workflow.run
    async def run(self, secret: str) -> str:
        """Take it, hand it on, wait for it once more, fail with it."""
        with contextlib.suppress(ActivityError):
            await workflow.execute_activity(
                sing,
                secret,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1)),
                summary=f"summary {secret}",
            )
        workflow.upsert_memo({"memo": f"memo {secret}"})
        await workflow.wait_condition(lambda: bool(self._heard))
        raise ApplicationError(f"ended with {self._heard}")

    @workflow.signal
    def hear(self, secret: str) -> None:
        """Take it in a signal."""
        self._heard = secret

    @workflow.query
    def heard(self) -> str:
        """Tell what was heard."""
        return self._heard


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Run a server on a file."""
    server = Server(file=tmp_path / "temporal.db")
    server.start()
    yield server
    server.kill()


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """A configuration with keys."""

    config: TemporalConfig
    file: Path


@pytest.fixture
def keyed(server: Server, tmp_path: Path) -> Keyed:
    """Configure keys."""
    file = tmp_path / "keys" / "codec.keys"
    add_key(file)
    config = TemporalConfig(address=server.address, codec_keys_file=str(file))
    return Keyed(config=config, file=file)


async def sung(client: Client, canary: str, *, name: str) -> None:
    """Run the workflow that leaks a canary to its end."""
    async with Worker(
        client,
        task_queue=f"{QUEUE}-{name}",
        workflows=[Canary],
        activities=[sing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await client.start_workflow(
            Canary.run,
            canary,
            id=f"canary-{name}",
            task_queue=f"{QUEUE}-{name}",
            memo={"first": canary},
            static_summary=f"summary {canary}",
            static_details=f"details {canary}",
            execution_timeout=HOURS,
        )
        await handle.signal(Canary.hear, canary)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert canary in str(failed.value.cause)
        assert await handle.query(Canary.heard) == canary


def traces(folder: Path, canary: str) -> int:
    """Count a canary in everything that the server has written."""
    files = list(folder.glob("temporal.db*"))
    assert files
    return sum(path.read_bytes().count(canary.encode()) for path in files)


async def test_no_canary_is_in_temporals_database_or_histories(
    server: Server, keyed: Keyed, tmp_path: Path
) -> None:
    plain = await connect(TemporalConfig(address=server.address))
    await sung(plain, "canary-plain-4f1d", name="plain")
    sealed = await connect(keyed.config)
    await sung(sealed, "canary-sealed-9b2e", name="sealed")
    told = {
        name: (await plain.get_workflow_handle(f"canary-{name}").fetch_history()).to_json()
        for name in ("plain", "sealed")
    }
    server.kill()
    assert traces(tmp_path, "canary-plain-4f1d") >= 10
    assert traces(tmp_path, "canary-sealed-9b2e") == 0
    assert told["plain"].count("canary-plain-4f1d") + told["plain"].count("Y2FuYXJ5") >= 5
    assert "canary-sealed-9b2e" not in told["sealed"]
    assert told["sealed"].count("Encoded failure") >= 2
    assert "Traceback" not in told["sealed"]
    assert ".py" not in told["sealed"]


async def test_a_run_works_with_sealed_payloads_and_names_nobody(
    server: Server, keyed: Keyed, sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    plain = await connect(TemporalConfig(address=server.address))
    await register_search_attributes(plain)
    for client, name in (
        (plain, "canary-job-a71c"),
        (await connect(keyed.config), "canary-job-c30e"),
    ):
        house = build_house(client, sqlite_engine, tmp_path)
        async with house.worker(), Driver(house=house).running():
            run_id = await house.submit(a_job_spec(name))
            await house.until_run(run_id, "succeeded")
    server.kill()
    assert traces(tmp_path, "canary-job-a71c") >= 1
    assert traces(tmp_path, "canary-job-c30e") == 0


async def test_what_was_begun_in_the_clear_ends_sealed(server: Server, keyed: Keyed) -> None:
    plain = await connect(TemporalConfig(address=server.address))
    begun = await plain.start_workflow(
        Canary.run, "canary", id="canary-across", task_queue=f"{QUEUE}-across"
    )
    await sealed_end(keyed, begun.id)
    history = await begun.fetch_history()
    replayer = Replayer(
        workflows=[Canary],
        data_converter=data_converter(keyed.config),
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    replayed = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    assert replayed.replay_failure is None


async def sealed_end(keyed: Keyed, workflow_id: str) -> None:
    """Let a worker with keys end a workflow."""
    client = await connect(keyed.config)
    handle = client.get_workflow_handle(workflow_id)
    async with Worker(
        client,
        task_queue=f"{QUEUE}-across",
        workflows=[Canary],
        activities=[sing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await handle.signal(Canary.hear, "enough")
        with pytest.raises(WorkflowFailureError):
            await handle.result()


async def test_keys_rotate_under_workers_that_run(server: Server, keyed: Keyed) -> None:
    old = await connect(keyed.config)
    async with Worker(
        old,
        task_queue=f"{QUEUE}-rotating",
        workflows=[Canary],
        activities=[sing],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        add_key(keyed.file)
        new = await connect(keyed.config)
        handle = await new.start_workflow(
            Canary.run, "canary", id="canary-rotating", task_queue=f"{QUEUE}-rotating"
        )
        await handle.signal(Canary.hear, "enough")
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), 60)
        assert "enough" in str(failed.value.cause)


async def test_a_key_that_is_gone_is_named_to_who_reads(server: Server, keyed: Keyed) -> None:
    codec = payload_codec(keyed.config)
    assert codec is not None
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')
    (sealed,) = await codec.encode([payload])
    assert sealed.metadata["encoding"] == b"binary/encrypted"
    assert await codec.decode([sealed, payload]) == [payload, payload]
    keyed.file.unlink()
    add_key(keyed.file)
    other = payload_codec(keyed.config)
    assert other is not None
    with pytest.raises(UnreadablePayload, match=sealed.metadata["encryption-key-id"].decode()):
        await other.decode([sealed])
    assert await other.decode([payload]) == [payload]


async def test_every_message_of_ours_survives_sealing(keyed: Keyed) -> None:
    converter = data_converter(keyed.config)
    message = contracts.AttemptEvent(event_id="evt_1", kind="accepted", detail="ü" * 1_000)
    (payload,) = await converter.encode([message])
    assert "ü".encode() not in payload.data
    assert await converter.decode([payload], [contracts.AttemptEvent]) == [message]
