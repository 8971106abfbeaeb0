"""The patches refuse a Megatron they were not written for."""

import importlib.metadata

import pytest

from layertracer.errors import UserError
from megatron_patches.versions import check_version


def test_the_installed_version_is_known():
    check_version()


@pytest.mark.parametrize("version", ["0.18.1", "0.20.0", "1.0"])
def test_another_series_is_refused_with_what_to_install(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    with pytest.raises(UserError, match=rf"megatron-core {version}.*install"):
        check_version()
