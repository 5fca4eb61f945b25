r"""The application: the command line, one class a command, and the report page."""

__all__: list[str] = []
