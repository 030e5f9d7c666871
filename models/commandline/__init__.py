"""What the commands of `moespec` do, and the pictures and pages that they write."""
