"""Training from existing weights: fine-tuning, a change of resolution, upcycling of a dense model.

`moespec train --init SOURCE` uses the parameters of SOURCE that the model also has (`rules`). `moespec finetune SOURCE` also uses the
model of SOURCE (`start`).
"""
