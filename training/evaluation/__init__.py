"""Evaluates a model: accuracy and routing on a split; few-shot, nearest-neighbour and zero-shot accuracy; slot statistics of Soft MoE."""
