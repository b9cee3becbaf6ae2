"""The process beside the daemon that runs the commands which `cli_client` passes."""
