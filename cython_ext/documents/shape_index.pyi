from typing import final

from lsmstate.cython_ext.documents.document_index import DocumentIndex

@final
class ShapeIndex(DocumentIndex):
    @property
    def shape_count(self) -> int: ...
