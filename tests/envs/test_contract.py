"""Every simulator that is shipped keeps the contract that is shipped for those of others."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rollout.testing import SimulatorContract


class TestGymnasium(SimulatorContract):
    target = "gym:toys:toy/Count-v0"


class TestGymnasiumNested(SimulatorContract):
    target = "gym:toys:toy/Echo-v0"
    options: ClassVar = {"space": "dict"}
    can_film = False


class TestGymnasiumClassic(SimulatorContract):
    target = "gym:CartPole-v1"
    can_film = False  # pygame is not a dependency


@pytest.mark.metaworld
@pytest.mark.gl
class TestMetaWorld(SimulatorContract):
    n_steps = 8
    target = "metaworld:mt10"
    task_id = 2
    options: ClassVar = {"height": "64", "width": "64"}


@pytest.mark.libero
@pytest.mark.gl
class TestLibero(SimulatorContract):
    n_steps = 8
    target = "libero:spatial"
    options: ClassVar = {"height": "64", "width": "64"}


@pytest.mark.pusht
class TestPushT(SimulatorContract):
    target = "pusht"


@pytest.mark.aloha
@pytest.mark.gl
class TestAloha(SimulatorContract):
    n_steps = 8
    target = "aloha:insertion"
    options: ClassVar = {"height": "60", "width": "80"}
