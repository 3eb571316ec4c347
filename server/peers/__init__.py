"""Other engines, measured beside core: `core bench peers`. Each runs in an environment of its own, set up by hand
(README.md), and nothing of it is imported here."""
