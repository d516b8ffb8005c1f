"""Sends a run file and its source; asking again after a broken connection starts no second run."""

import getpass
from collections.abc import Mapping
from typing import Final, cast

from forgeyard import clock
from forgeyard.cli.client import Client
from forgeyard.cli.following import Patience
from forgeyard.cli.material import Material
from forgeyard.cli.options import rng
from forgeyard.cli.source import upload_source
from forgeyard.config import Config
from forgeyard.model.ids import new_id

API_RUNS: Final = "/v1/runs"
SUBMIT_PATIENCE_S: Final = 10.0


def submit_run(
    client: Client,
    material: Material,
    wish: Mapping[str, object],
    *,
    config: Config,
    idempotency_key: str | None,
    quiet: bool,
) -> dict[str, object]:
    """Upload the source, submit the document, and return the run as the API shows it.

    What is wished beside the document is sent where it says something.
    """
    digest = upload_source(client, material, config=config, quiet=quiet)
    key = idempotency_key or new_id("key", now=clock.now(), rng=rng())
    said = {name: value for name, value in wish.items() if value is not None}
    body = {
        "document": material.document,
        "source_digest": digest,
        "submitted_by": whoami(),
        **said,
    }
    patience = Patience(patience_s=SUBMIT_PATIENCE_S)
    answer = patience.ask(lambda: client.post(API_RUNS, body, idempotency_key=key))
    return cast("dict[str, object]", answer)


def whoami() -> str:
    """Name the person at this terminal, as far as the host knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def because(reason: str) -> dict[str, object]:
    """Say why something is wanted, and who says so; both are audited."""
    return {"reason": reason, "actor": whoami()}
