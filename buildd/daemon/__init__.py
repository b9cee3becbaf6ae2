"""The daemon's process: sockets, clients, control, life."""
