from multiprocessing.shared_memory import *
from multiprocessing.shared_memory import __all__ as __all__
