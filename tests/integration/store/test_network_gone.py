"""A network that swallows packets: what waits for the database gives up in seconds."""

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
from tests.networks import OtherHost, ip, other_hosts

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
CARRY = """
import sys, time
from pathlib import Path
from tests.chaos.proxy import Proxy
print(Proxy(target=Path(sys.argv[1]), host=sys.argv[2]).port, flush=True)
time.sleep(300)
"""


@pytest.fixture
def house() -> Iterator[OtherHost]:
    """Make a network of two hosts, of which this is one."""
    with other_hosts(1) as (host,):
        yield host


def test_a_statement_gives_up_when_the_network_swallows_it(
    house: OtherHost, postgresql_url: str
) -> None:
    url = sa.make_url(postgresql_url)
    command = house.command(sys.executable, "-c", CARRY)
    carrier = subprocess.Popen(
        (*command, str(socket_of(url)), house.there), stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert carrier.stdout is not None
        port = int(carrier.stdout.readline())
        engine = open_engine(
            url.set(host=house.there, port=port, query={}).render_as_string(hide_password=False),
            StoreConfig(),
        )
        ask(engine)
        ip("-n", house.namespace, "link", "set", house.far_cable, "down")
        asked_at = time.monotonic()
        with pytest.raises(StoreUnavailable):
            ask(engine)
        assert 2 < time.monotonic() - asked_at < 40, "it was swallowed, and noticed"
        ip("-n", house.namespace, "link", "set", house.far_cable, "up")
        ask(engine)
        engine.dispose()
    finally:
        carrier.kill()
        carrier.communicate()


def ask(engine: sa.Engine) -> None:
    with read(engine) as connection:
        connection.execute(sa.select(1))
