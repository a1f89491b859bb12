"""From an ONNX file to a plan: checks of the file, optimization profiles, the parser, the builder, and what a user is told of all of it.

Nothing here is imported by a node.
"""
