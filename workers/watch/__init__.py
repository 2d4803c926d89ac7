"""The watch process: from conditions on Nodes to quarantine and signals, without Temporal."""
