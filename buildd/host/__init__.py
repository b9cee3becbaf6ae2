"""This machine's memory and processes, and the share that a job may use."""
