"""A network that swallows packets: what waits for the database gives up in seconds."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.errors import StoreUnavailable
from forgeyard.store.engine import open_engine, read
from tests.chaos.outage import socket_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/sbin/ip").exists(), reason="only root can make a network"
    ),
]
ROOT = Path(__file__).parents[3]
NEAR, FAR = "10.231.77.1", "10.231.77.2"
CARRY = """
import sys, time
from pathlib import Path
from tests.chaos.proxy import Proxy
print(Proxy(target=Path(sys.argv[1]), host=sys.argv[2]).port, flush=True)
time.sleep(300)
"""


def ip(*words: str) -> None:
    subprocess.run(("/sbin/ip", *words), check=True, timeout=10)


@pytest.fixture
def house() -> Iterator[str]:
    """Make a network of two hosts, of which this is one; give the name of the other."""
    name = f"forgeyard-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("link", "add", "fy-near", "type", "veth", "peer", "name", "fy-far", "netns", name)
        ip("addr", "add", f"{NEAR}/30", "dev", "fy-near")
        ip("link", "set", "fy-near", "up")
        ip("-n", name, "addr", "add", f"{FAR}/30", "dev", "fy-far")
        ip("-n", name, "link", "set", "fy-far", "up")
        yield name
    finally:
        ip("netns", "del", name)


def test_a_statement_gives_up_when_the_network_swallows_it(house: str, postgresql_url: str) -> None:
    url = sa.make_url(postgresql_url)
    command = ("/sbin/ip", "netns", "exec", house, sys.executable, "-c", CARRY)
    carrier = subprocess.Popen(
        (*command, str(socket_of(url)), FAR), stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert carrier.stdout is not None
        port = int(carrier.stdout.readline())
        engine = open_engine(
            url.set(host=FAR, port=port, query={}).render_as_string(hide_password=False),
            StoreConfig(),
        )
        ask(engine)
        ip("-n", house, "link", "set", "fy-far", "down")
        asked_at = time.monotonic()
        with pytest.raises(StoreUnavailable):
            ask(engine)
        assert 2 < time.monotonic() - asked_at < 40, "it was swallowed, and noticed"
        ip("-n", house, "link", "set", "fy-far", "up")
        ask(engine)
        engine.dispose()
    finally:
        carrier.kill()
        carrier.communicate()


def ask(engine: sa.Engine) -> None:
    with read(engine) as connection:
        connection.execute(sa.select(1))
