"""The routes, a file for each room. Each has one function that adds its routes to the application."""
