"""Where `forgeyard up` listens, and what agents from elsewhere need for that."""

import socket
from collections.abc import Callable
from typing import Final

from forgeyard import clock
from forgeyard.addresses import LOOPBACK
from forgeyard.config import Config
from forgeyard.errors import NotFound
from forgeyard.trust.authority import Authority

EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})
DOMAIN: Final = "forgeyard.internal"


def listening(settings: Config, listen: str | None, *, say: Callable[[str], None]) -> Config:
    """Let both APIs listen on an address; agents that come from elsewhere have certificates."""
    if listen is None:
        return settings
    chosen: dict[str, object] = {"host": listen, "agent_host": listen}
    if listen not in LOOPBACK:
        chosen["agent_identity"] = "certificate"
        _have_authority(settings, listen, say=say)
    return settings.model_copy(update={"api": settings.api.model_copy(update=chosen)})


def _have_authority(settings: Config, listen: str, *, say: Callable[[str], None]) -> None:
    """Make what agents elsewhere need, unless somebody has made it before."""
    authority = Authority(settings.authority_dir())
    try:
        authority.root()
    except NotFound:
        authority.create(DOMAIN, now=clock.now())
        say(f"made an authority for agents in {authority.folder}; keep its root.key elsewhere")
    try:
        authority.server_files()
    except NotFound:
        hosts = _own_names() if listen in EVERYWHERE else [listen]
        authority.server(hosts, now=clock.now())
        say(f"made a certificate for the agents' listener: {', '.join(hosts)}")


def _own_names() -> list[str]:
    """List the names and addresses by which this machine may be reached, as far as it knows."""
    name = socket.gethostname()
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None)]
    except OSError:
        found = []
    addresses = [address.partition("%")[0] for address in (*found, *sorted(LOOPBACK))]
    return list(dict.fromkeys((name, socket.getfqdn(), *addresses)))
