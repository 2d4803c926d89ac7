"""Things die, hang and come back while episodes run; the episodes end as they would have."""
