"""TensorRT: the installed bindings, plans and their metadata, the tool that builds them, and the backend that runs them."""
