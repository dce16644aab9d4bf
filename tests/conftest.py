"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: no example has a time limit.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
