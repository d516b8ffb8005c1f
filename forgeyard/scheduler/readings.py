"""What is measured of the system around the scheduler whenever a snapshot is taken."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What was measured when the snapshot was taken."""

    store_ms: int = 0
    """How long the database took to answer the snapshot's queries."""
    outbox_lag_ms: int = 0
    """For how long the oldest event has waited to be sent to Temporal."""
    waiting: int = 0
    saturation: int = 0
    """How much of the slots of runners that take work is in use, in thousandths."""
    blobs: str = ""
    """What is wrong with the blob store; empty is nothing."""
