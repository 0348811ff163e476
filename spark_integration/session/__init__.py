"""How a Spark session is set up, and whether its workers can run lsmstate."""
