"""The folder that users' programs have on PYTHONPATH: it must hold nothing but sitecustomize."""
