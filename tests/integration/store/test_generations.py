"""Generations grow, one by one, on both databases."""

import sqlalchemy as sa

from forgeyard.store import generations
from forgeyard.store.engine import read, write


def test_a_generation_grows_with_every_change_and_begins_at_nothing(engine: sa.Engine) -> None:
    with read(engine) as connection:
        assert generations.current(connection) == 0
    for _ in range(2):
        with write(engine) as connection:
            generations.bump(connection)
    with read(engine) as connection:
        assert generations.current(connection) == 2
        assert generations.current(connection, "another") == 0
