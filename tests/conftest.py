"""What every test may ask for."""

pytest_plugins = ["support.postgres", "cluster.plugin"]
