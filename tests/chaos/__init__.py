"""Faults done to real processes: killed, frozen, cut off, starved, and told things twice.

| fault | here | closer to the code, in tests/integration |
|---|---|---|
| F1 worker killed between commit and its answer | test_worker_killed | store/test_commit |
| Temporal killed | test_temporal_killed | temporal/test_worker |
| Temporal down across due timers | test_timers_missed | |
| F2, F12 worker killed or frozen while it makes a machine | test_provisioning | simulation/fleet |
| F2, F3, F4 the same at Amazon, or its answer lost | test_provisioning_aws | contract |
| Temporal or PostgreSQL killed as machines come and go | test_provisioning_outages | |
| workflows of fleets reset or doubled (F27) | | temporal/test_fleet_authority |
| F5 PostgreSQL killed while leases are committed | test_postgresql_killed | |
| F7 database gone, or unreachable | test_database_gone | store/test_sweep |
| F8 disk full | test_disk_full | |
| F9 an offer two to five times, every call again | test_deliveries | agent/test_agent_end_to_end |
| F10 offers lost | test_deliveries | store/test_dispatch |
| F11 frozen past its lease, or before starting | test_agent_frozen | agent/test_agent_end_to_end |
| F13 wrong clocks | test_clocks | |
| F14 a whole fleet reconnects at once | test_reconnect | unit/api/test_turnstile |
| F15 cut off in one direction | test_partition | store/test_runners |
| F29 a job that kills its runner; agent killed | test_agent_killed | |
| F31 Temporal or the database away | test_degraded | |
| F32 a slow worker | test_slow_worker | store/test_readings |
| an API dies, and all of them do | test_own_outage | property/test_renewal_gap |
| a lock held for too long | test_lock_held | |
| accepted before the workflow was started | test_worker_killed | temporal/test_attempt_lease |
| relay repeats and reorders | test_deliveries | temporal/test_relay |
| workflows terminated or reset | test_operator | temporal/test_operator |
| `forgeyard up` killed | test_up_killed | |

Every test repeats its fault in rounds (`--chaos-rounds`), draws its moments from `--chaos-seed`,
prints how often it met its moment, and fails if it never did; a table at the end sums them up.
`proxy` is the network between any two processes, `standin` a process of ours that fails at a named
moment, `outage` a database that goes away. What must hold in SQL afterwards is in `invariants`,
whose own test damages a database in every way that it looks for.
"""
