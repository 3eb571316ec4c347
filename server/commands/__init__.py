"""The sub-commands of `core`, one file each. Heavy imports stay inside the functions: `core --help` is fast."""
