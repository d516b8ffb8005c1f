"""Where the Temporal Web UI tells the story of an attempt, a fleet or a machine."""

from urllib.parse import quote

from forgeyard.cli.endpoint import checked_url, running_system
from forgeyard.config import Config


def temporal_ui(config: Config, url: str | None) -> str | None:
    """Find the namespace's page in the Web UI; None if nobody has said where it is.

    The system that runs in the data directory knows its own; for another one the configuration
    must say so.
    """
    running = running_system(config.data_dir)
    is_own = bool(running) and (url is None or checked_url(url) == running.get("api_url"))
    base = running.get("ui_url") if is_own else None
    if base is None and "ui_url" in config.temporal.model_fields_set:
        base = config.temporal.ui_url
    return f"{base.rstrip('/')}/namespaces/{quote(config.temporal.namespace)}" if base else None


def attempt_link(ui: str | None, job_id: str, number: int) -> str:
    """Link to the workflow of one attempt."""
    return _workflow(ui, f"attempt/{job_id}/{number}")


def fleet_link(ui: str | None, fleet_id: str) -> str:
    """Link to the reconciler of a fleet."""
    return _workflow(ui, f"fleet/{fleet_id}")


def instance_link(ui: str | None, instance_id: str) -> str:
    """Link to the workflow of one machine."""
    return _workflow(ui, f"instance/{instance_id}")


def _workflow(ui: str | None, workflow_id: str) -> str:
    return f"{ui or ''}/workflows/{quote(workflow_id, safe='')}"
