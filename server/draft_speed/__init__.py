"""What drafts gain, and why: the same prompts without and with them, in turns."""
