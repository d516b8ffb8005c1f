"""An agent has no way to the database: it cannot even load what speaks to one."""

import subprocess
import sys

import pytest

PROBE = """
import sys
import forgeyard.agent.loop
banned = ("sqlalchemy", "psycopg", "forgeyard.store")
print(sorted(name for name in sys.modules if name.startswith(banned)))
"""


@pytest.mark.requirement("INV-015", "INV-040")
def test_an_agent_never_loads_the_store_or_a_driver() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
