from multiprocessing.sharedctypes import *
from multiprocessing.sharedctypes import __all__ as __all__
