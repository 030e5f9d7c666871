"""Estimates the memory, operations and communication of training without the devices, for the command `moespec plan`."""
