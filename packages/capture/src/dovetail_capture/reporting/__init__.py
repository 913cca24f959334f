"""What users are told of a capture: logs, failures, warnings, artifacts."""
