"""Asks OR-Tools, which is no dependency of ours, from a throw-away environment if need be."""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Problem = dict[str, Any]
Answer = dict[str, Any]
Solver = Callable[[Sequence[Problem]], list[Answer]]
REQUIREMENT = "ortools==9.15.6755"
PROGRAM = Path(__file__).with_name("optimum.py")
INSTALL_SECONDS, SOLVE_SECONDS = 600, 3600


class SolverUnavailable(Exception):
    """OR-Tools is not there and could not be installed."""


@contextmanager
def a_solver() -> Iterator[Solver]:
    """Give a function that solves problems; `benchmarks.optimum` says what they are."""
    if find_spec("ortools") is not None:
        yield partial(_ask, Path(sys.executable))
        return
    with TemporaryDirectory(prefix="forgeyard-ortools-") as folder:
        yield partial(_ask, _installed(Path(folder)))


def _installed(folder: Path) -> Path:
    """Make an environment with OR-Tools from the package index that pip is configured for."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", REQUIREMENT],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SolverUnavailable(
            f"pip could not install {REQUIREMENT}; install it into this environment by hand, or"
            f" point pip to an index that has it:\n{done.stderr.strip()}"
        )
    return python


def _ask(python: Path, problems: Sequence[Problem]) -> list[Answer]:
    done = subprocess.run(
        [python, PROGRAM],
        input=json.dumps(problems),
        capture_output=True,
        text=True,
        timeout=SOLVE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise SolverUnavailable(f"the solver failed:\n{done.stderr.strip()}")
    found: list[Answer] = json.loads(done.stdout)
    return found
