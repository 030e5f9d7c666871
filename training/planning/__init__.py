"""Estimates, without access to the devices, the memory, operations and communication of training, for the command `moespec plan`."""
