r"""The application: the command line, one class a command, and the report page."""

__all__: list[str] = []

import logging

# no word of a folder that it cannot make where the home cannot be written to
logging.getLogger("matplotlib").setLevel(logging.ERROR)
