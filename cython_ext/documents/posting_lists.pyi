from typing import final

from typing_extensions import disjoint_base

from lsmstate.cython_ext.documents.document_index import DocumentIndex

@disjoint_base
class PostingLists(DocumentIndex): ...

@final
class Bitmaps(PostingLists): ...
