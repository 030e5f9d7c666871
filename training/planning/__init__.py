"""What training takes, ahead of time and without the devices: memory, operations, bytes on the links; the command `moespec plan`."""
