"""Random cases are the same in every run unless ``--hypothesis-profile=random`` asks for new ones; plans are those of a
typical machine, since constants measured beside other programs decide otherwise from run to run (`test_measured.py`
sets both what is measured and what it might be)."""

import os

from hypothesis import HealthCheck, settings

os.environ["EINSUM_ENGINE_MEASURE"] = "0"

# Other programs share the machine: neither a slow example nor slow drawing is a failure.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("repeatable", derandomize=True, **_COMMON)
settings.register_profile("random", print_blob=True, **_COMMON)
settings.load_profile("repeatable")
