"""The reader of images reads or refuses whatever it is given; see harness.py."""

import pytest


def test_for_seconds(fuzz):
    fuzz("images", "short")


@pytest.mark.full
def test_for_minutes(fuzz):
    fuzz("images", "long")
