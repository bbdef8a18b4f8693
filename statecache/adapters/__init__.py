"""What ties statecache to other libraries, a module each, which needs an extra and takes public names only."""
