"""How fast kernels are: as part of what the machine can do, and beside a record of another device."""
