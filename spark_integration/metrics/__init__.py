"""What a bucket reports, listeners, Prometheus."""
