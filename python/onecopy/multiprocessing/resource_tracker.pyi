from multiprocessing.resource_tracker import *
from multiprocessing.resource_tracker import __all__ as __all__
