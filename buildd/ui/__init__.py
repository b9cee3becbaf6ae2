"""What people see: terminal progress, plain lines, traces. Consumes events; knows no socket."""
