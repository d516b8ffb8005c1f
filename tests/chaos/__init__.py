"""Faults done to real processes: killed, frozen, cut off, and told things twice.

| fault | here | closer to the code, in tests/integration |
|---|---|---|
| worker killed between commit and its answer | test_worker_killed | store/test_commit |
| Temporal killed | test_temporal_killed | temporal/test_worker |
| Temporal down across due timers | test_timers_missed | |
| agent killed with its work | test_agent_killed | agent/test_agent_end_to_end |
| frozen past its lease, or before starting | test_agent_frozen | agent/test_agent_end_to_end |
| accepted before the workflow was started | test_worker_killed | temporal/test_attempt_lease |
| the same offer two to five times | test_deliveries | agent/test_agent_end_to_end |
| database gone | test_database_gone | store/test_sweep |
| relay repeats and reorders | test_deliveries | temporal/test_relay |
| workflows terminated or reset | test_operator | temporal/test_operator |
| `forgeyard up` killed | test_up_killed | |

Every test repeats its fault in rounds (`--chaos-rounds`), draws its moments from `--chaos-seed`,
prints how often it met its moment, and fails if it never did. What must hold in SQL afterwards is
in `invariants`, whose own test damages a database in every way that it looks for.
"""
