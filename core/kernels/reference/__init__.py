"""What every kernel means, in plain torch: the semantics, the default, and the oracle for native kernels.

One file per group of `core.kernels.table`. Output shapes follow from input shapes: no `.item()`, no boolean
indexing, no loop over lengths. Inputs wider than float32 are computed in their own width, so that a reference
given float64 is its own oracle.
"""
