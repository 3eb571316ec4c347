"""Load on a server, through HTTP, and what came of it: `core bench serve`. Knows nothing of this server but the API."""
