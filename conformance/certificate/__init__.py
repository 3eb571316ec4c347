"""The certificate: a bundle of files that says what was run and what came of it, and how anyone checks its word."""
