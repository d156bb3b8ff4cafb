"""Training on raw files, without a preparation pass.

files.py      which files there are, on disks and in object stores
index.py      how many rows each has, and where every 65,536th of them begins
formats.py    finds these places, and reads the rows between two of them
raw_rows.py   the rows of files as the loader reads them: the counterpart of prepared Parquet
options.py    what a recipe says of raw files
dataset.py    a data set whose rows are in raw files
"""

from megalith.data.ingest.dataset import RawDataset
from megalith.data.ingest.options import RawFilesConfig

__all__ = ["RawDataset", "RawFilesConfig"]
