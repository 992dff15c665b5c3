"""Models and data of the user's own in a run: `call = "my_file.py:make"`."""
