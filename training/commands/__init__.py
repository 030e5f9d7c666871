"""The commands of `moespec`. Each module defines one command: the arguments, `main`, which parses the arguments, and the command itself."""
