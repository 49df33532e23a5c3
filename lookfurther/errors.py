"""Errors for users: one line with the problem and the fix, and an exit code for each kind."""

from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable


class LookFurtherError(Exception):
    """Base class of errors that the user can fix, as opposed to bugs."""

    exit_code = 1

    def __str__(self) -> str:
        """The message on one line; parts of it may be text from a file."""
        return make_printable(super().__str__(), MAX_MESSAGE_LENGTH)


class ConfigError(LookFurtherError):
    """An unknown setting or an invalid value."""

    exit_code = 2


class EnvironmentFault(LookFurtherError):
    """An environment raised an exception, changed its shapes or returned an invalid value."""

    exit_code = 3


class DemonstrationError(LookFurtherError):
    """Demonstrations that are missing, damaged or of another environment."""

    exit_code = 4


class CheckpointError(LookFurtherError):
    """A checkpoint that is missing, incomplete or altered."""

    exit_code = 5


class TrainingDiverged(LookFurtherError):
    """A loss or gradient that is not finite."""

    exit_code = 6


class RunLocked(LookFurtherError):
    """Another process is training in the same run folder."""

    exit_code = 7


class CallbackError(LookFurtherError):
    """A callback that cannot start."""

    exit_code = 8


class ClusterFault(LookFurtherError):
    """A cluster that cannot be reached, or that loses actors again and again."""

    exit_code = 9
