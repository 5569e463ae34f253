"""Keep runs on disk: journals while recording, Parquet after the seal, and readers for both."""
