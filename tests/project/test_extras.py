"""What needs an extra says which one."""

import subprocess
import sys


def test_without_pyspark_the_face_of_spark_names_its_extra() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import lsmstate, lsmstate.join, lsmstate.spark\n"
        "try:\n    lsmstate.spark.multiway_join\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == (
        "lsmstate.spark.multiway_join needs pyspark; run: pip install 'lsmstate[spark]'\n"
    )
