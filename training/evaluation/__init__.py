"""Evaluates a model: accuracy and routing over a split, few-shot, nearest neighbours, slots of Soft MoE."""
