"""The Python backend: ``model.py`` in a process of its own, so that user code cannot take the server down."""
