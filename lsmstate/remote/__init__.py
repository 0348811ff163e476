"""State on S3, GCS, ABFS and HDFS: the durable directory and its local copies."""
