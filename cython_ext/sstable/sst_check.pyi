from collections.abc import Iterable

from lsmstate.cython_ext.rows.row_codec import RowCodec
from lsmstate.cython_ext.sstable.sst_reader import Sst

def layout(sst: Sst) -> dict[str, int]: ...
def verify(sst: Sst, codecs: Iterable[RowCodec] = ...) -> dict[str, int]: ...
