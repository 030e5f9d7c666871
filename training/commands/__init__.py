"""The commands of `moespec`, one per module: its arguments, `main`, which parses them, and the command itself."""
