r"""The application: the command line, one class a command, and the report page."""
