"""Training data from where it is: raw files without a preparation pass, object stores, reader processes.

index.py      how many rows each has, and where every 65,536th of them begins
formats.py    finds these places, and reads the rows between two of them
raw_rows.py   the rows of files as the loader reads them: the counterpart of prepared Parquet
options.py    what a recipe says of raw files
dataset.py    a data set whose rows are in raw files
stored.py     a prepared data set in an object store
tier.py       what a recipe says of who reads
ray_tier.py   readers that are processes of Ray
"""

from megalith.data.ingest.dataset import RawDataset
from megalith.data.ingest.options import RawFilesConfig
from megalith.data.ingest.stored import StoredDataset

__all__ = ["RawDataset", "RawFilesConfig", "StoredDataset"]
