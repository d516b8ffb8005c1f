"""Amazon as moto plays it: a server process of its own, on a free port."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.integration.temporal.server import free_port

READY_WITHIN_S = 180.0


@contextmanager
def moto() -> Iterator[int]:
    """Run it until the block ends; hand out its port."""
    port = free_port()
    command = (sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1")
    process = subprocess.Popen(
        (*command, "-p", str(port)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Its own images take seconds to read, anew after each reset.
        env={**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"},
    )
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not _answers(port):
            assert process.poll() is None, "moto ended"
            assert time.monotonic() < deadline, "moto does not answer"
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def reset(port: int) -> None:
    """Forget everything."""
    url = f"http://127.0.0.1:{port}/moto-api/reset"
    httpx.post(url, trust_env=False, timeout=READY_WITHIN_S).raise_for_status()


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/moto-api/data.json", trust_env=False, timeout=20)
    except httpx.HTTPError:
        return False
    return True
