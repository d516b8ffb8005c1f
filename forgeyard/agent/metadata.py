"""Keeps the user that jobs run as from the addresses where clouds hand out credentials.

A rule in the kernel's routing, by user: whatever name leads there, and whichever program asks. The
rule stays until the machine starts anew, for a job may outlive its agent.
"""

import subprocess
from collections.abc import Sequence

from forgeyard.agent.account import Account
from forgeyard.agent.confine import SYSTEM_PATH

ADDRESSES = (
    "169.254.169.254",  # nearly everybody's
    "169.254.170.2",  # the credentials of a task in ECS
    "169.254.170.23",  # those of a pod in EKS
    "100.100.100.200",  # Alibaba
    "fd00:ec2::254",  # AWS
    "fd00:ec2::23",  # a pod in EKS
    "fd20:ce::254",  # GCP
)
PREFERENCE = "77"
"""Where the rules stand: before every table but the host's own addresses."""
TIMEOUT_S = 5.0


def forbid(account: Account) -> str:
    """Forbid the addresses to a user and look whether that holds; empty if it does, else why not.

    Blocks.
    """
    users = f"{account.uid}-{account.uid}"
    for address in ADDRESSES:
        family, length = ("-6", 128) if ":" in address else ("-4", 32)
        where = (*("to", f"{address}/{length}"), *("uidrange", users), "pref", PREFERENCE)
        problem = _ip(family, "rule", "add", *where, "prohibit")
        # A rule that is there already does as well; what counts is what the kernel answers.
        answer = _ip(family, "route", "get", address, "uid", str(account.uid))
        is_unknown_family = "not supported" in problem and "RTNETLINK" in answer
        if "Permission denied" not in answer and not is_unknown_family:
            return f"{address}: {problem or answer or 'the host has this address itself'}"
    return ""


def _ip(*arguments: str) -> str:
    """Run `ip`; return what went wrong, if anything did."""
    return _complaint(("ip", *arguments))


def _complaint(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            env={"PATH": SYSTEM_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() or "it failed" if done.returncode else ""
