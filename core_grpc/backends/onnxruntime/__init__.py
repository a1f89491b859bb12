"""ONNX Runtime. Nothing outside this package imports onnxruntime, and this package only when a model needs it."""
