from multiprocessing.synchronize import *
from multiprocessing.synchronize import __all__ as __all__
