"""Errors that a user can mend. Their text is the whole message: what was given, what was expected, what to do."""


class InputError(ValueError):
    """Something given to papa (a config, a file, a model, an argument) is not what it has to be."""


class DamagedArtefact(InputError):
    """A file that papa wrote earlier cannot be read any more, or belongs to something else."""
