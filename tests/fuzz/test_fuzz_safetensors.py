"""The reader of safetensors reads or refuses whatever it is given; see harness.py."""

import pytest


def test_for_seconds(fuzz):
    fuzz("safetensors", "short")


@pytest.mark.full
def test_for_minutes(fuzz):
    fuzz("safetensors", "long")
