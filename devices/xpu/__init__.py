"""Intel GPUs, through what torch itself has for them. See README.md."""
