"""Small C programs of buildd, compiled with the host compiler when they are first needed."""
