"""Errors that tell a user in one sentence what to change."""

import pytest

import papa
from papa.errors import DamagedArtefact


def input_error(sentence):
    """Expect an `InputError` with this pattern in its sentence inside the `with` block."""
    return pytest.raises(papa.InputError, match=sentence)


def damage_error(sentence):
    """Expect a `DamagedArtefact` with this pattern in its sentence inside the `with` block."""
    return pytest.raises(DamagedArtefact, match=sentence)
