"""Training that starts from other weights: fine-tuning, another resolution, upcycling from a dense model.

`moespec train --init SOURCE` takes the parameters of SOURCE as far as the model has them (`rules`);
`moespec finetune SOURCE` takes its model as well (`model`).
"""
