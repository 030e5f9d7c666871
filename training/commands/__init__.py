"""The commands of `moespec`, a module each: its arguments, `main`, which parses them, and what it does."""
