"""Tests of the deterministic part: the runbook in memory, the workflows on a real server."""
