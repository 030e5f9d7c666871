"""Training from existing weights: fine-tuning, another resolution, upcycling from a dense model.

`moespec train --init SOURCE` uses the parameters of SOURCE that the model has (`rules`);
`moespec finetune SOURCE` uses its model as well (`start`).
"""
