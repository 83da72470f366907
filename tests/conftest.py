"""What every test may ask for."""

pytest_plugins = ["support.postgres", "support.site_fixtures", "cluster.plugin"]
