"""What training takes on devices that need not be there: memory, operations, bytes on the links; the command `moespec plan`."""
