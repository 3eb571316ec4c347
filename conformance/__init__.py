"""Examines devices: whether their kernels are right, whether engines on them answer right, and how fast they are.

Owns cases, float64 oracles, error bounds, wrong kernels that must be refused, and the certificate. Rests on `core`
alone: devices are reached as `core` reaches them, by entry point.
"""
