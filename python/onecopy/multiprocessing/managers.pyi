from multiprocessing.managers import *
from multiprocessing.managers import __all__ as __all__
