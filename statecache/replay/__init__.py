"""A replay of recorded agent runs that kills what it stands on, and an audit that trusts nobody.

    input ──▶ agents (processes) ──▶ the cache ──▶ flushers (processes) ──▶ Postgres
                 │ journals                                                     │
                 └──────────────────────▶ audit ◀───────────────────────────────┘

For every message of a run an agent commits the run's state, by compare-and-set on what it committed before. Each
attempt is an `invoke` line in the agent's own journal before anything is sent, and an `ok`, `unknown` or `fail` line
after. An agent that was killed is started again, reads its journals and the state in the cache, sends what was in
doubt once more under the same change_id, and goes on.

Meanwhile the supervisor kills agents, flushers, Redis and Postgres at moments drawn from a seed, and counts a kill
only if a commit was in flight at that moment. When all is flushed, the audit compares journals, input and Postgres,
and Postgres with Redis. It uses none of the code that it judges.

    runs        the input, and what an agent derives from it        ledger      journals, folded
    journal     lines that survive a kill                           audit       what was lost, doubled, forked, broken
    agent       one agent process                                   evidence    what the audit reads from the servers
    nemesis     when to kill what                                   supervisor  all of it, in order
"""
