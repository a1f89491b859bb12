"""Pipelines: models that are made of other models, wired tensor to tensor (Triton's ensembles)."""
