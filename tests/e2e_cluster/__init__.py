"""What a platform engineer does with the product on a real cluster: install, apply, call, upgrade, uninstall.

Needs the node tier, so it is run by `make e2e-cluster` inside the cluster's network namespace, and by nothing else.
The modules run in the order of their names on one installation; each leaves it whole.
"""
