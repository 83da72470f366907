"""The whole product on real parts: API server, Postgres, operator, gateways and workers as processes, model wire, MCP.

`installation` starts it once for all tests here, `room` is a namespace of a test's own. Everything that the product
does, it does with the rights of its own ServiceAccounts; only the tests are administrators.
"""
