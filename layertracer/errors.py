"""Errors that are the user's to mend: one clear line, exit code 2, no traceback."""

EXIT_USER_ERROR = 2


class UserError(Exception):
    """Bad input. The message names the file or flag, what is wrong, and what to do.

    Library functions raise it; the command line and the training entry print
    ``error: <message>`` and leave with exit code 2.
    """
