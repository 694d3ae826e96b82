"""The reader of hdf5 reads or refuses whatever it is given; see harness.py."""

import pytest


def test_for_seconds(fuzz):
    fuzz("hdf5", "short")


@pytest.mark.full
def test_for_minutes(fuzz):
    fuzz("hdf5", "long")
