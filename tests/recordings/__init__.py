"""What Prometheus would have scraped while something went wrong: real servers and workers, real faults, real minutes.

    python -m tests.recordings                  # all of them, a quarter of an hour each, three at a time
    python -m tests.recordings redis_full

Each file is a test of `promtool test rules`: the series were recorded, what is expected of them was written by hand and
is kept when the series are recorded anew. A metric that the rules begin to read has to be recorded.
"""
