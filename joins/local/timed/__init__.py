"""Joins that forget or wait for the watermark; wrap any local join."""
