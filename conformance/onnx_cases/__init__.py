"""The ONNX project's own node cases, put to the rows of the kernel table.

Cases, expected results and tolerances come from the installed `onnx` package. `map` says which case goes to which row,
`left_out` why others go to none. Adapters only move numbers to where a row's contract wants them.
"""
