"""The HTTP server and the command line: everything people touch. Reaches devices and models through core only."""
