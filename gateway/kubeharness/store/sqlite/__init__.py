"""The SQLite backend: one file on one machine, the default of `kubeharness dev`. `store.sqlite.store` opens it."""
