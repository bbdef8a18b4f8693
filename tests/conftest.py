"""The table of contents of the tests' fixtures. A fixture module may bring hooks too, such as `pytest_report_header`.

fix_batons        the baton of one state, and another process that has it
fix_deployment    servers with the files of config/, set up as a deployment
fix_faults        networks that fail to order
fix_flusher       workers turned by hand, and commits by the real script
fix_locks         a lock as it stands in Redis
fix_near          two clients of one deployment, one that keeps and one that writes
fix_pair          a primary with a replica
fix_processes     how tests are shared out between the processes of a run
fix_redis         a deployment on fakeredis, for stories that need no server
fix_servers       real servers, found and named in the run's header; deployments and clients on them
fix_stalls        stories that count seconds, told again where the machine stood still
fix_steps         what steps do: charges that are counted
fix_surroundings  nothing of the caller's terminal, nothing drawn by chance
fix_time          a clock that moves when the test says so
fix_tls           a Redis that speaks TLS
"""

from __future__ import annotations

pytest_plugins = [
    "tests.fix_batons",
    "tests.fix_faults",
    "tests.fix_flusher",
    "tests.fix_locks",
    "tests.fix_processes",
    "tests.fix_redis",
    "tests.fix_servers",
    "tests.fix_near",
    "tests.fix_pair",
    "tests.fix_stalls",
    "tests.fix_steps",
    "tests.fix_surroundings",
    "tests.fix_time",
    "tests.fix_tls",
    "tests.fix_deployment",
]
