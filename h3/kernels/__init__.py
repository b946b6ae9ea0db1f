"""Triton kernels, imported only where CUDA runs them; each has an eager twin that gives the same bits."""
