"""The program that a node task runs on its node."""
