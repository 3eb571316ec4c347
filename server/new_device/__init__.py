"""What `core new-device` writes."""
