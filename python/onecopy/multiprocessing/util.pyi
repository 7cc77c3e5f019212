from multiprocessing.util import *
from multiprocessing.util import __all__ as __all__
