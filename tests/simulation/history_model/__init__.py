"""Random histories on real servers, compared with a plain model that keeps every version of every key."""
