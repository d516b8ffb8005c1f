"""Registrations that come twice: an agent that was not answered asks again, and both may be heard.

The one that is heard late must not fence the session that the agent has by then, with jobs in it.
"""

import hashlib
import random

import sqlalchemy as sa

from forgeyard.errors import StaleRejected
from forgeyard.model.ids import SessionId
from forgeyard.model.protocol import Register
from forgeyard.store import tables
from forgeyard.store.births import draw_id
from forgeyard.store.changes import Row


def session_of(message: Register, *, now: int, rng: random.Random) -> SessionId:
    """Name the session that a registration opens: by its key, so that a second one opens none."""
    if not message.key:
        return SessionId(draw_id("ses", now=now, rng=rng))
    said = f"{message.runner_name}/{message.key}"
    return SessionId(f"ses_{hashlib.sha256(said.encode()).hexdigest()[:32]}")


def is_repeated(connection: sa.Connection, runner: Row, session_id: SessionId) -> bool:
    """Tell whether a registration with a locked runner was heard before, and is the newest.

    Raises:
        StaleRejected: the session that it opened then has ended.
    """
    sessions = tables.sessions
    known = sa.select(sessions.c.state).where(sessions.c.session_id == session_id)
    if connection.execute(known).first() is None:
        return False
    if runner["session_id"] != session_id:
        raise StaleRejected(
            "this registration is an old one", field="key", allowed="register with another key"
        )
    return True
