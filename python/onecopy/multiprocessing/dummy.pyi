from multiprocessing.dummy import *
from multiprocessing.dummy import __all__ as __all__
