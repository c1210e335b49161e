"""Errors that tell a user in one sentence what to change."""

import pytest

import papa


def input_error(sentence):
    """Expect an `InputError` with this pattern in its sentence inside the `with` block."""
    return pytest.raises(papa.InputError, match=sentence)
