"""What a run minimises: a module for each objective, with what it is made of besides the model."""
