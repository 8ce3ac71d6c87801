"""Its being here puts this folder on the path, so that every test can `import wire` and `loops`."""

from hypothesis import HealthCheck, settings

# As hypothesis does it where it knows that it runs in CI: the same examples each time, and no example fails for its time, since
# machines are busy. `pytest --hypothesis-profile=default` looks for new ones.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
