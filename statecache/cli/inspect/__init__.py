"""`statecache inspect`: a deployment in a browser."""
