"""`statecache status`, and the looks at a deployment that other screens share."""
