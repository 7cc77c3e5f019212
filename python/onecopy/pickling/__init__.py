# SPDX-License-Identifier: Apache-2.0
"""How pickles carry tensors, handles and queues. Private, but pickles name ``tensors`` and ``messages``."""
