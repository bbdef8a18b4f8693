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

    runs, journal, ledger, nemesis, audit,    what is decided: input, lines, what became of each change, when to
    progress, story                           kill, what the evidence proves, what there is to show and to tell
    agent, fleet, stage, pace, watermarks     what runs: one agent, all processes, the servers, how fast, how far
    evidence, report, supervisor              what is read at the end, what is told, and all of it in order
"""
