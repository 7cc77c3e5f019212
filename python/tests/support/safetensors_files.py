# SPDX-License-Identifier: Apache-2.0
"""Files in the format of safetensors, written byte by byte."""

import json
import struct


def write_safetensors(path, tensors, metadata=None):
    """`tensors`: it maps names to (dtype in the format's words, shape, bytes)."""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path
