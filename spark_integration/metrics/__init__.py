"""Metrics: what a bucket reports, listeners, Prometheus."""
