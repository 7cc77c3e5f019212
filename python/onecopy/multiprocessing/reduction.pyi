from multiprocessing.reduction import *
from multiprocessing.reduction import __all__ as __all__
