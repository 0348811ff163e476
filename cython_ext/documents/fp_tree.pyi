from typing import final

from lsmstate.cython_ext.documents.document_index import DocumentIndex

@final
class FpTree(DocumentIndex): ...
