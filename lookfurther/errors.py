"""What can go wrong for a user: a message of one line that names the thing and the mend."""

from lookfurther.system.printable import MAX_MESSAGE_LENGTH, make_printable


class LookFurtherError(Exception):
    """Base of every error that is the user's to mend rather than ours."""

    exit_code = 1

    def __str__(self) -> str:
        """The message on one line; parts of it may come from a file."""
        return make_printable(super().__str__(), MAX_MESSAGE_LENGTH)


class ConfigError(LookFurtherError):
    """A setting that does not exist, or cannot hold."""

    exit_code = 2


class EnvironmentFault(LookFurtherError):
    """An environment raised, changed its shapes or gave a value that cannot be learned from."""

    exit_code = 3


class DemonstrationError(LookFurtherError):
    """Demonstrations that are missing, broken or of another environment."""

    exit_code = 4


class CheckpointError(LookFurtherError):
    """A checkpoint that is missing, cut or altered."""

    exit_code = 5


class TrainingDiverged(LookFurtherError):
    """A loss or gradient that is not finite."""

    exit_code = 6


class RunLocked(LookFurtherError):
    """Another process trains in the same run folder."""

    exit_code = 7
