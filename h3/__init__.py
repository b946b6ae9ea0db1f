"""The H3 model: tensors in, tensors out."""
