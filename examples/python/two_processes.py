# SPDX-License-Identifier: Apache-2.0
import subprocess, sys
import onecopy

if len(sys.argv) == 2:  # the second process: given the text of a handle, it has the same memory
    onecopy.open(sys.argv[1])[0, 0] = 42
else:
    weights = onecopy.zeros((1024, 1024))
    subprocess.run([sys.executable, __file__, str(onecopy.share(weights))], check=True)
    print("weights[0, 0] is now", float(weights[0, 0]))
