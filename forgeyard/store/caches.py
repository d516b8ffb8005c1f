"""Dependency caches: archives under keys that agents compute, each in the trust class it came from.

The trust class is that of the attempt, as written when its lease was granted; an agent never names
it. What a job on an untrusted runner saved is found on such runners only. An entry never changes:
under one key the first archive stays until retention, or damage, takes it away.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from forgeyard.errors import InvalidRequest, NotFound
from forgeyard.model.job import JobSpec
from forgeyard.store import blobs, changes, codec, distrust, habits, tables
from forgeyard.store.changes import ATTEMPT, JOB, Row
from forgeyard.store.engine import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is cached under a key, and for whom."""

    trust: str
    key: str
    digest: str


def check_declared(connection: sa.Connection, lease: Row, name: str) -> None:
    """Insist that a lease's job declares a cache.

    Raises:
        InvalidRequest: it declares no such cache.
    """
    spec = codec.decode(JobSpec, changes.find(connection, JOB, lease["job_id"])["spec"])
    names = [cache.name for cache in spec.caches]
    if name not in names:
        raise InvalidRequest(
            f"the job declares no cache {name!r}",
            field="name",
            value=name,
            allowed=", ".join(names) or "none: the job has no caches",
        )


def find(connection: sa.Connection, lease: Row, name: str, key: str) -> Entry | None:
    """Find what is cached for a lease under a key; it is safe from retention for an hour.

    An entry whose blob is not recorded any more, or that comes from a runner that is distrusted,
    is forgotten, so that a new one can come.

    Raises:
        InvalidRequest: the job declares no such cache.
    """
    check_declared(connection, lease, name)
    caches, trust, now = tables.caches, _trust(connection, lease), database_now(connection)
    used = (
        sa.update(caches)
        .where(caches.c.trust == trust, caches.c.cache_key == key, caches.c.name == name)
        .values(used_at=now)
        .returning(caches.c.digest, caches.c.runner_id, caches.c.created_at)
    )
    found = connection.execute(used).one_or_none()
    if found is None:
        habits.note(connection, lease["job_id"], f"{habits.CACHE}{name}", key, now=now)
        return None
    entry = Entry(trust=trust, key=key, digest=found.digest)
    is_there = not distrust.covers(connection, found.runner_id, found.created_at)
    is_there = is_there and blobs.touch(connection, found.digest) is not None
    if not is_there:
        drop(connection, entry)
    habits.note(connection, lease["job_id"], f"{habits.CACHE}{name}", key, now=now)
    return entry if is_there else None


def record(
    connection: sa.Connection, lease: Row, name: str, key: str, digest: str, size: int
) -> None:
    """Write down a cache whose bytes are stored; if there is one under this key, that one stays.

    The caller has checked that the lease is live.

    Raises:
        InvalidRequest: the job declares no such cache.
        NotFound: no such blob was recorded.
    """
    check_declared(connection, lease, name)
    now = database_now(connection)
    row = {
        "trust": _trust(connection, lease),
        "cache_key": key,
        "name": name,
        "digest": digest,
        "size_bytes": size,
        "created_at": now,
        "used_at": now,
        "runner_id": lease["runner_id"],
    }
    changes.upsert(connection, tables.caches, row, changes={})
    # In this order as in `find`: entry, then blob.
    if blobs.touch(connection, digest) is None:
        raise NotFound(f"no blob {digest}", field="digest", value=digest)


def drop(connection: sa.Connection, entry: Entry) -> None:
    """Forget an entry whose bytes are gone or damaged; one that replaced it meanwhile stays."""
    caches = tables.caches
    connection.execute(
        sa.delete(caches).where(
            caches.c.trust == entry.trust,
            caches.c.cache_key == entry.key,
            caches.c.digest == entry.digest,
        )
    )


def _trust(connection: sa.Connection, lease: Row) -> str:
    return str(changes.find(connection, ATTEMPT, lease["attempt_id"])["trust"])
