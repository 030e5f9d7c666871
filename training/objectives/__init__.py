"""What a run minimises: a module for each objective."""
