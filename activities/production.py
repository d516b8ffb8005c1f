"""What a production system demands of the servers beneath it, asked of them and not assumed."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio.api.workflowservice.v1 import GetClusterInfoRequest, ListNamespacesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.connection import Access, connect_as, read_access
from forgeyard.config import Config, Profile, TemporalConfig
from forgeyard.errors import UnfitForProduction

TIMEOUT: Final = timedelta(seconds=5)
REFUSED: Final = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED})


def demand_store(config: Config) -> None:
    """Refuse a production system on another database than PostgreSQL.

    Raises:
        UnfitForProduction: the store is a SQLite file.
    """
    if config.profile is Profile.PRODUCTION and not config.database_url().startswith("postgresql"):
        raise UnfitForProduction(
            "a production system keeps its store in PostgreSQL",
            field="store.url",
            value=config.database_url().partition(":")[0],
            allowed='postgresql://…, or profile = "development"',
        )


async def demand_server(client: Client, config: Config) -> None:
    """Refuse a production system on a Temporal server that is made for trying out.

    Such a server keeps everything in SQLite, which no other one does.

    Raises:
        UnfitForProduction: it is one.
        RPCError: the server does not answer.
    """
    if config.profile is not Profile.PRODUCTION:
        return
    try:
        found = await client.workflow_service.get_cluster_info(
            GetClusterInfoRequest(), timeout=TIMEOUT
        )
    except RPCError as error:
        if error.status in REFUSED:
            return  # somebody guards it, and nobody guards a development server
        raise
    if found.persistence_store == "sqlite":
        raise UnfitForProduction(
            f"the Temporal server at {config.temporal.address} is a development server",
            field="temporal.address",
            value=config.temporal.address,
            allowed='a server with a database of its own, or profile = "development"',
        )


async def open_doors(config: TemporalConfig) -> tuple[str, ...]:
    """Try what nobody should be let do, and tell what was let through.

    The open-source server's authoriser, unless it is given another one, lets everything through.
    """
    access = read_access(config)
    found: list[str] = []
    if await _lists_namespaces(_nobody(access), config):
        found.append("Temporal lets anybody who reaches it do anything: its authoriser is open")
    elif await _lists_namespaces(access, config):
        found.append(
            "Temporal lets this process see every namespace: its authoriser is open, or the"
            " credentials may do more than the namespace needs"
        )
    return tuple(found)


def _nobody(access: Access) -> Access:
    """Give the access of a stranger, who knows no more than whom to trust."""
    if access.tls is None:
        return Access()
    return Access(tls=replace(access.tls, client_cert=None, client_private_key=None))


async def _lists_namespaces(access: Access, config: TemporalConfig) -> bool:
    try:
        async with asyncio.timeout(2 * TIMEOUT.total_seconds()):
            client = await connect_as(access, config)
            await client.workflow_service.list_namespaces(
                ListNamespacesRequest(page_size=1), timeout=TIMEOUT
            )
    except (RPCError, RuntimeError, TimeoutError):
        return False
    return True
