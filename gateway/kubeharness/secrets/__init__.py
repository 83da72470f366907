"""Where Secrets come from outside of a cluster."""
