"""Two-Step Convert (TSC): a plan of two-way joins becomes one of multi-way joins. Pure: plans are
values, nothing here knows Spark, files or stores."""
