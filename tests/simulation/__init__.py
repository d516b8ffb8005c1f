"""The whole control plane in one thread: every clock virtual, every message and fault from a seed.

The store, the planner, the activities of a cycle, the relay's bookkeeping, the loop's rules and the
agent's own lease are the product's. What is made up is what lies between them: the network, the
workflows that Temporal would run, the people, the hosts.

| module | holds |
|---|---|
| clock | the virtual time, told to the database as its own clock |
| database | a database that fails when it commits, and lets others in between two transactions |
| world | the queue of events: whoever is next, the time moves there |
| weather | how likely each fault is in one seed, and how often each happened |
| network | requests that are late, lost, repeated, or answered in vain |
| hosts | agents: they accept, renew, work, freeze, die and come back |
| plane | scheduler loops, relay, workflows, upkeep, beats of the API |
| people | runs that are submitted, and what operators do |
| ledger | what must hold, looked at after every event |
| seeds | many seeds, and how often what happened in them |
| story | one seed from its first event until everything has come to rest |
| mutants | the product without one of its safeguards; each must be found out |

`python -m tests.simulation --seed N` replays a seed.
"""
