"""The one exception for people: printed as one line, without a traceback."""


class EyasError(Exception):
    """Something a user can mend. The message names the thing, what was found, what was expected, and the fix."""
