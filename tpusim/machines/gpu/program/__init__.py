"""The waist: the kernels of a layer, what their blocks stage and multiply step by step, and where it comes from."""
