"""The commands of `moespec`. Each module defines a command's arguments, `main`, which parses the arguments, and the command function."""
