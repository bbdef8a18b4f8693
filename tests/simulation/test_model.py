"""Two clients, a worker and two servers do what hypothesis thinks of, and the cache is what a plain dict is."""

from __future__ import annotations

import os

from tests.fixtures.servers import Site
from tests.simulation.model import check, deployment

EXAMPLES, STEPS = 18, 40


def test_the_cache_is_what_a_plain_dict_is(site: Site) -> None:
    check(lambda: deployment(site, f"t{os.getpid()}_m"), examples=EXAMPLES, steps=STEPS, seed=None)
