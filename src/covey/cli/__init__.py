"""The command line. Every flag is a field of a dataclass; the commands only put the library's parts together."""
