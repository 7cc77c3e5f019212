from multiprocessing.heap import *
from multiprocessing.heap import __all__ as __all__
