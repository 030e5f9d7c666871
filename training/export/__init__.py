"""Models as programs that run without this package: `moespec export`."""
