"""Estimates the cost of training without the devices, for the command `moespec plan`: memory, operations, bytes on the links."""
