"""The cost of training, estimated without the devices: memory, operations, bytes on the links; the command `moespec plan`."""
