"""openpi's own client, for tests that ask it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from openpi_peers import search_path

CLIENT = "openpi-client==0.1.2"


@pytest.fixture(scope="session")
def openpi_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where openpi's own client lies, for PYTHONPATH: installed here, without its dependencies (it pins numpy < 2)."""
    target = tmp_path_factory.mktemp("openpi")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), CLIENT]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        reason = f"{CLIENT} cannot be installed: {done.stderr.strip()[-300:]}"
        if "openpi" in os.environ.get("ROLLOUT_TEST_REQUIRE", "").split(","):
            pytest.fail(f"ROLLOUT_TEST_REQUIRE names openpi: {reason}", pytrace=False)
        pytest.skip(reason)
    return search_path(str(target))
