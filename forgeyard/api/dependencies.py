"""What the routes work with; built once by `serve`, or by a test."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import sqlalchemy as sa
from fastapi import Depends, Request
from prometheus_client.registry import Collector

from activities.encryption import EncryptionCodec
from forgeyard.api.callers import SessionOwners
from forgeyard.api.keepalive import Keepalive
from forgeyard.api.policy_cache import PolicyCache
from forgeyard.api.polling import AssignmentReader
from forgeyard.api.trust import Trust
from forgeyard.config import Config
from forgeyard.model.injection import Injection
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import engine as database
from forgeyard.store.blobs import BlobStore
from forgeyard.store.policies import current


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDependencies:
    """Everything from outside that a route may touch."""

    engine: sa.Engine
    blobs: BlobStore
    config: Config
    policies: PolicyCache
    token: str = field(repr=False)
    rng: random.Random
    kick: Callable[[], None]
    """Ask for a relay of what was just committed; never blocks and never fails."""
    temporal_answers: Callable[[], Awaitable[bool]]
    assignments: AssignmentReader
    keepalive: Keepalive
    trust: Trust
    owners: SessionOwners
    figures: Collector
    """What the store can tell Prometheus."""
    codec: EncryptionCodec | None = None
    """Seals and opens what Temporal keeps, if there are keys."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this process was asked to end: whoever can should ask another one."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it begins to: what waits is answered with what there is."""

    def policy(self, connection: sa.Connection) -> SchedulingPolicy:
        """Read the policy in force, at most a second old."""
        return self.policies.read(connection)

    def injection(self, connection: sa.Connection) -> Injection:
        """Read what the policy in force adds to jobs: this very one, for it is applied once."""
        return current(connection, self.policies.built_in).injection

    @contextmanager
    def change(self) -> Generator[sa.Connection]:
        """Open a write transaction, and have its events relayed once it is committed."""
        with database.write(self.engine) as connection:
            yield connection
        self.kick()


async def _dependencies(request: Request) -> ApiDependencies:
    found: object = request.app.state.dependencies
    assert isinstance(found, ApiDependencies)
    return found


Deps = Annotated[ApiDependencies, Depends(_dependencies)]
