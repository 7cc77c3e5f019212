from multiprocessing.connection import *
from multiprocessing.connection import __all__ as __all__
