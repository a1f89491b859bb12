"""The description of everything that is served over REST: ``/v1`` and ``/v2`` by the core through the edge, the rest by the facade."""

from rest_facade.openapi.document import openapi_document, openapi_json

__all__ = ["openapi_document", "openapi_json"]
