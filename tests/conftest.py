"""The table of contents of the tests' fixtures. A fixture module may bring hooks too, such as `pytest_report_header`.

browser       a headless browser for what is served as pages
command_line  the command line on the test's deployment
deployment    servers with the files of config/, set up as a deployment
faults        networks that fail to order
flusher       workers turned by hand, and commits by the real script
locks         a lock as it stands in Redis
near          two clients of one deployment, one that keeps and one that writes
pair          a primary with a replica
processes     how tests are shared out between the processes of a run
redis         a deployment on fakeredis, for stories that need no server
servers       real servers, found and named in the run's header; deployments and clients on them
shard         one shard whose servers the test starts and kills
stalls        stories that count seconds, told again where the machine stood still
steps         what steps do: charges that are counted
surroundings  nothing of the caller's terminal, nothing drawn by chance
time          a clock that moves when the test says so
tls           a Redis that speaks TLS
turns         whose turn it is to update one state, and another process that has it
"""

from __future__ import annotations

pytest_plugins = [
    "tests.fixtures.browser",
    "tests.fixtures.command_line",
    "tests.fixtures.faults",
    "tests.fixtures.flusher",
    "tests.fixtures.locks",
    "tests.fixtures.processes",
    "tests.fixtures.redis",
    "tests.fixtures.servers",
    "tests.fixtures.near",
    "tests.fixtures.pair",
    "tests.fixtures.shard",
    "tests.fixtures.stalls",
    "tests.fixtures.steps",
    "tests.fixtures.surroundings",
    "tests.fixtures.time",
    "tests.fixtures.tls",
    "tests.fixtures.turns",
    "tests.fixtures.deployment",
]
