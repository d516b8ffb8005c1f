"""Replays seeds of the simulation of fleets and prints what happened."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from tests.simulation.database import on_sqlite
from tests.simulation.fleet.mutants import MUTANTS
from tests.simulation.fleet.story import simulate


def main() -> int:
    """Play the seeds that were asked for."""
    options = _parser().parse_args()
    mutant = {one.__name__: one for one in MUTANTS}.get(options.mutant, nullcontext)
    happened: Counter[str] = Counter()
    violated = 0
    with tempfile.TemporaryDirectory() as folder:
        database = on_sqlite(Path(folder))
        for seed in range(options.seed, options.seed + options.seeds):
            began = time.process_time()
            with mutant():
                told = simulate(seed, options.steps, database)
            if options.seeds == 1:
                print("\n".join(told.lines))
            took = time.process_time() - began
            print(
                f"seed {seed}: {told.steps} steps, {told.virtual_ms / 1000:.0f} s + "
                f"{told.rested_ms / 1000:.0f} s of virtual time, {took:.1f} s:"
                f" {told.violation or 'holds'}",
                flush=True,
            )
            happened += told.happened
            violated += bool(told.violation)
            if options.mutant and violated:
                break
    for what, count in sorted(happened.items()):
        print(f"{count:7} {what}")
    return 1 if violated else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.fleet", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many; one prints its events")
    parser.add_argument("--steps", type=int, default=500, help="events until the weather clears up")
    names = [one.__name__ for one in MUTANTS]
    parser.add_argument("--mutant", choices=names, help="a safeguard to do without")
    return parser


sys.exit(main())
