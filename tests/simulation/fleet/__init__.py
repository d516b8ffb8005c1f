"""Fleets in virtual time: the real activities, planner and store over a provider that is no help.

Two fleets serve one class on two providers, of which one remembers the keys of its creates and the
other does not. Workflows are made up: who tends a machine may crash at any point, be two, or be
forgotten. Agents are made up: they redeem real tokens, register, work, fall silent.

| module | holds |
|---|---|
| cloud | the fake provider as the product sees it: calls that hang, and crashes around them |
| agents | what boots on a machine and becomes a runner, or does not |
| control | reconcilers, tenders of machines, scheduler and sweep |
| people | jobs that come and go, operators, and everything that befalls a provider |
| ledger | what must hold, looked at after every event |
| story | one seed from its first event until everything has come to rest |
| mutants | the product without one of its safeguards; each must be found out |

`python -m tests.simulation.fleet SEED` replays a seed.
"""
