"""Tools and workers as processes: started, measured, ended."""
