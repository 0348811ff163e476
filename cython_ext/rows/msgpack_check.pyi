import numpy as np
import numpy.typing as npt

def check_documents(
    data: npt.NDArray[np.uint8] | bytes, offsets: npt.NDArray[np.int32]
) -> None: ...
