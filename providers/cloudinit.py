"""What a new machine is told at its first start: where home is, and a token that works once.

Nothing else: no key, no password, no token that lives. The image brings `cloud-init`, the program
and its unit as they are in `deploy/systemd`.
"""

import json
import re
from typing import Final

from forgeyard.errors import InvalidSpec
from forgeyard.fleet.ports import ProvisionRequest
from forgeyard.model.fleet import Market, Offering

LARGEST: Final = 16 * 1024
"""In bytes; the least that a provider allows."""
USER: Final = "forgeyard-agent"
UNIT: Final = "forgeyard-agent.service"
GIVE_UP: Final = "give_up_s"
"""The setting of an offering for `agent.give_up_s`."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;/+=@~\[\]-]*")
"""What stays one word in an environment file, whatever reads it."""


def user_data(request: ProvisionRequest) -> str:
    """Write a cloud-config that starts the agent: address, single-use token and pin, no more.

    Raises:
        InvalidSpec: a machine there could not prove itself, or something would not stay one word.
    """
    bootstrap = request.bootstrap
    if not (bootstrap.url.startswith("https://") and bootstrap.token and bootstrap.pin):
        raise InvalidSpec(
            "a machine elsewhere needs a token, the root's pin and an https address",
            field="bootstrap",
            value=bootstrap.url,
            allowed="api.agent_identity = certificate or front",
        )
    files = [
        _file("/etc/forgeyard/token", _plain(bootstrap.token, "token") + "\n"),
        _file("/etc/forgeyard/agent.env", _environment(request)),
    ]
    start = ["systemctl", "enable", "--now", UNIT]
    # JSON is YAML, and says what is a string.
    text = "#cloud-config\n" + json.dumps({"write_files": files, "runcmd": [start]}, indent=1)
    if len(text.encode()) > LARGEST:
        raise InvalidSpec("too much for user data", field="offering", allowed=f"{LARGEST} bytes")
    return text


def _environment(request: ProvisionRequest) -> str:
    bootstrap, offering = request.bootstrap, request.offering
    said = {
        "AGENT_JOIN": bootstrap.url,
        "CA_PIN": bootstrap.pin,
        "FORGEYARD_AGENT__JOBS": str(request.capacity.resources.slots or ""),
        "FORGEYARD_AGENT__GIVE_UP_S": _seconds(offering),
        "FORGEYARD_AGENT__REGION": offering.region,
        "FORGEYARD_AGENT__SITE": offering.zone,
        "FORGEYARD_AGENT__COST_MICROS_PER_HOUR": str(offering.cost or ""),
        "FORGEYARD_AGENT__RELIABILITY": (
            "preemptible" if offering.market is Market.PREEMPTIBLE else ""
        ),
    }
    return "".join(f"{name}={_plain(value, name)}\n" for name, value in said.items() if value)


def _seconds(offering: Offering) -> str:
    """Tell after how long in silence a machine is to end itself, if its offering says so."""
    text = offering.settings.get(GIVE_UP, "")
    if text and not (text.isdecimal() and len(text) < 7):
        raise InvalidSpec(
            "no machine can wait so long",
            field=f"offerings.{offering.name}.settings.{GIVE_UP}",
            value=text,
            allowed="whole seconds",
        )
    return text


def _plain(text: str, field: str) -> str:
    if not _PLAIN.fullmatch(text):
        raise InvalidSpec(
            "this cannot be written into an environment file",
            field=field,
            value=None if field == "token" else text,
            allowed="letters, digits and _.,:;/+=@~[]-",
        )
    return text


def _file(path: str, content: str) -> dict[str, str]:
    return {"path": path, "content": content, "permissions": "0600", "owner": f"{USER}:{USER}"}
