"""`megalith data prepare`: click logs of any size to a data set of Parquet parts, in bounded memory.

    options -> source (readers) -> count pass -> vocabulary -> write pass -> DIR

Both passes run the same ordered pipeline, so the output is the same to the last bit for any number of
threads.
"""

from megalith.data.prepare.options import PrepareOptions
from megalith.data.prepare.run import PrepareResult, list_frame, prepare

__all__ = ["PrepareOptions", "PrepareResult", "list_frame", "prepare"]
