"""State on S3, GCS, ABFS and HDFS: the remote directory and its local copies."""
