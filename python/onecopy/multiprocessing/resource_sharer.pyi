from multiprocessing.resource_sharer import *
from multiprocessing.resource_sharer import __all__ as __all__
