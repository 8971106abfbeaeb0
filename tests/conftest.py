"""What every test may count on."""

import signal

# Started in the background, a shell hands SIGINT down as ignored, and every process that a test
# starts would inherit that; those that are to be stopped by Ctrl-C need it as on a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
