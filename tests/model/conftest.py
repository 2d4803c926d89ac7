"""How hard the pure model is tried: enough examples to find shapes, few enough for every run."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "model",
    max_examples=60,
    deadline=None,  # a shared machine is slow now and then
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("model")
