"""Settings for property tests on machines that are busy: no deadline for one example, the test's own timeout holds."""

from hypothesis import HealthCheck, settings

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
