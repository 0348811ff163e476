"""The only package that takes private objects of Spark."""
