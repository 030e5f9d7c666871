"""Evaluates a model: accuracy and routing over a split, few-shot, nearest-neighbour and zero-shot accuracy, and slots of Soft MoE."""
