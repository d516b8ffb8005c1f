"""A job's environment reaches it whole, through a shell that runs nothing of it."""

import subprocess
from functools import partial

import pytest

from forgeyard.agent.account import job_account
from forgeyard.agent.confine import exports
from forgeyard.errors import InvalidRequest

NASTY = {
    "PLAIN": "a b",
    "QUOTES": 'it\'s "quoted" `id` $(id) $HOME \\ ;&|<>*?#',
    "LINES": "one\ntwo\n\n",
    "EMPTY": "",
    "BYTES": "caf\udce9",
    "IFS": "x",
}


def test_every_value_arrives_as_it_is_and_nothing_in_it_is_run() -> None:
    script = 'eval "$(cat)"; exec env -0'
    done = subprocess.run(
        ("sh", "-c", script), input=exports(NASTY), env={}, capture_output=True, check=True
    )
    entries = done.stdout.decode(errors="surrogateescape").split("\0")
    seen = dict(entry.split("=", 1) for entry in entries if entry)
    assert {name: seen[name] for name in NASTY} == NASTY


@pytest.mark.parametrize(
    ("name", "value"),
    [("A B", "x"), ("A;id", "x"), ("1A", "x"), ("", "x"), ("A", "x\0y"), ("Ä", "x")],
)
def test_what_is_no_variable_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a variable"):
        exports({name: value})


def test_no_job_may_run_as_root_or_as_nobody_known() -> None:
    assert job_account("", uid=lambda: 1000) is None
    account = job_account("nobody", uid=lambda: 0)
    assert account is not None
    assert account.uid > 0
    for name, uid in (("nobody", 1000), ("root", 0), ("nobody-is-called-so", 0)):
        with pytest.raises(InvalidRequest) as caught:
            job_account(name, uid=partial(int, uid))
        assert caught.value.field == "agent.job_user"
        assert caught.value.value == name
