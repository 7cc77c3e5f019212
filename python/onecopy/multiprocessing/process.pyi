from multiprocessing.process import *
from multiprocessing.process import __all__ as __all__
